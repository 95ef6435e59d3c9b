"""Looking at jobs from outside, through their shared memory: what each die does, and who waits for whom.

Nothing here needs the help of the job's processes, writes to them, or takes a lock of theirs: it works on a job that
hangs, on dies that are stopped, and on what is left of dead ones for as long as somebody holds their memory.
"""
