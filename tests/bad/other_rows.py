"""The rows of the table of bad inputs that no case of this folder holds: the test that does, or why none can.

A row is a letter and a number, as the ids of the cases begin: M weight files, C config files, T tokenizers,
P prompts, L command lines, Q plans and profiles, R resources, N numbers, X signals and resuming.
"""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = {"M": 35, "C": 20, "T": 20, "P": 25, "L": 13, "Q": 4, "R": 23, "N": 12, "X": 13}  # how many there are

# Row: a file under tests/ and a text in it that begins the test.
TESTED = {
    "M34": ("unit/models/safetensors_test.cpp", "FollowsLinksAndReportsShortenedFiles"),
    "R3": ("unit/base/gpu_errors_test.cpp", "RefusedMemoryComesWithWhatWouldFit"),
    "R5": ("unit/memory/pinned_host_test.cpp", "RefusalLeavesUsableUnpinnedMemoryAndTheReason"),
    "R6": ("unit/memory/pinned_host_test.cpp", "ServesAPoolWithItsBudget"),
    "R8": ("unit/runtime/fault_injection_test.cpp", "WhatCannotFitIsSaidBefore"),
    "R9": ("unit/runtime/fault_injection_test.cpp", "SaysHowMuchIsKeptAndCutsToWholeRecords"),
    "R12": ("e2e/run_test.py", "test_stdout_closed_early"),
    "R13": ("unit/runtime/fault_injection_test.cpp", "EveryFailureIsResumable"),
    "R14": ("unit/runtime/prompt_file_test.cpp", "AFileThatShrinksUnderwayIsAReadError"),
    "R16": ("unit/runtime/console_test.cpp", "TheWatchdogForgivesAProcessThatWasStopped"),
    "R17": ("unit/memory/transfer_engine_test.cpp", "AFailureReachesItsTicketAlone"),
    "R18": ("unit/runtime/console_test.cpp", "TheWatchdogEndsAHangingStepAndNothingElse"),
    "R19": ("unit/base/thread_pool_test.cpp", "RethrowsAndGoesOn"),
    "N2": ("unit/kernels/quantize_blocks_test.cpp", "MatchesReferenceBitForBitWithinHalfAStep"),
    "N3": ("unit/kernels/quantize_blocks_test.cpp", "ZerosOfBothSignsTinyRangesAndNonFiniteValues"),
    "N4": ("unit/kernels/quantize_blocks_test.cpp", "ZerosOfBothSignsTinyRangesAndNonFiniteValues"),
    "N5": ("unit/kernels/selection_test.cpp", "EmptyListsGiveZeros"),
    "N6": ("unit/kernels/attention_test.cpp", "LargeScoresNeitherOverflowNorVanish"),
    "N9": ("emulated/sample_test.cpp", "GreedyTakesTheLowestIdOfATie"),
    "N12": ("unit/models/tensor_scan_test.cpp", "ConvertsExactly"),
    "X1": ("e2e/crash_loop.py", "SIGKILL"),
    "X2": ("e2e/run_test.py", "test_the_second_signal_ends_at_once"),
    "X3": ("e2e/run_test.py", "test_signals_end_cleanly_and_the_job_resumes"),
    "X4": ("e2e/run_test.py", "test_signals_end_cleanly_and_the_job_resumes"),
    "X5": ("unit/runtime/power_cut_test.cpp", "TEST"),
    "X6": ("e2e/run_test.py", "test_two_runs_on_one_output"),
}
UNTESTED = {
    "M30": "weights keep their type, so none overflows",
    "T9": "every id is one of a prompt (P20) or of the model's rows (T15)",
    "R15": "nothing is offloaded to a disk",
    "R21": "no library is asked for the machine's topology",
    "R22": "needs a processor without AVX2",
    "R23": "nothing sets a locale, so numbers are always those of C",
    "N11": "arrays of 2^31 elements need more memory than a test may take",
}


def problems(cases):
    """Rows that neither a case nor an entry here holds, rows held twice, and tests that are gone."""
    with_case = {case.id.split("-")[0] for case in cases}
    found = []
    for row in (f"{letter}{number}" for letter, count in ROWS.items() for number in range(1, count + 1)):
        places = [row in with_case, row in TESTED, row in UNTESTED]
        if sum(places) != 1:
            found.append(f"row {row} is in {sum(places)} places, expected a case, a test elsewhere or a reason")
    for row, (file, text) in TESTED.items():
        if text not in (ROOT / file).read_text():
            found.append(f"row {row}: tests/{file} lacks {text}")
    return found
