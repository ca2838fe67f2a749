"""What happened to programs and subroutines, as frozen records of counts, seconds, reasons."""
