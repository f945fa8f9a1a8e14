"""The commands of `funcl`, one file each, which import what is slow when they run."""
