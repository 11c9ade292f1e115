"""What a transaction may write.

write_meter    checks the sizes of rows, in the transaction that writes them
disk_reserve   reserves disk space, so that rows can be deleted from a full disk
"""
