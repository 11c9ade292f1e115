"""The APIs of upstream servers that take and return token ids, one file each."""
