"""What a transaction may write.

write_meter    checks the sizes of rows, in the transaction that writes them
disk_reserve   space on the disk that is kept for deleting
"""
