"""The commands of `funcl`, one file each. What is slow to import is imported when a command runs."""
