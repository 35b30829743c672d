"""The compute pool's decisions: numbered blocks, who holds them, who makes room, who waits. Pure.

A block is 1 TFLOPS of a card's rated compute. `numbering` says which number lies on which card,
`space` which blocks are free, `placement` where a claim goes, `victims` who is suspended for it,
`queue` who is served next, `compaction` what to move; `pool` joins them. Times are arguments, and
nothing here does I/O: a manager carries out what the pool decides, and reports what came of it.
"""
