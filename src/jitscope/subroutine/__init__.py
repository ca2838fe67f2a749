"""`shared_subroutine`: one trace for all calls of a function that have one signature."""
