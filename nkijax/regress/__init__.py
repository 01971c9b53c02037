"""Regression of kernels: `nkijax regress`, and below it the pytest plugin.  In the order in which a run meets them:

command                     options, exit codes, the run as a whole; pool: processes with a time limit
discover, case              files, and the cases in them; a case and its arguments
execute → call, compare     one case: the calls of kernel and reference, and how far their values are apart
digest, history             values in short: of an output, of each instruction
baseline, report            what was accepted before, and what changed; bar, table, JSON, JUnit
failure, replay → blame     a failing case on disk, run again; which instruction went wrong, told by watch
"""
