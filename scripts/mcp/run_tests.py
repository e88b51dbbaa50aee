"""Runs the MCP tests. With ATELIER_TEST_RETRIES=1 a failed test is tried once more.

Usage: run_tests.py [PATTERN for the names of tests]

A test that passes the second time is flaky: it is named at the end, and in the file FLAKY_TESTS.
"""

import os
import sys
import unittest

MODULES = ["test_deploy", "test_clients", "test_protocol", "test_attacks", "test_projects", "test_conversations"]


def main(pattern=None):
    loader = unittest.TestLoader()
    if pattern:
        loader.testNamePatterns = [pattern if "*" in pattern else f"*{pattern}*"]
    failed = run(loader.loadTestsFromNames(MODULES))
    flaky = []
    if failed and os.environ.get("ATELIER_TEST_RETRIES", "0") != "0":
        print(f"trying again: {', '.join(failed)}", flush=True)
        # A fresh loader, because a pattern would be applied a second time.
        failed_again = run(unittest.TestLoader().loadTestsFromNames(failed))
        flaky = [name for name in failed if name not in failed_again]
        failed = failed_again
    for name in flaky:
        print(f"FLAKY {name}", flush=True)
    if flaky and (file := os.environ.get("FLAKY_TESTS")):
        with open(file, "a") as list_of_flaky:
            list_of_flaky.writelines(f"mcp: {name}\n" for name in flaky)
    return 1 if failed else 0


def run(suite):
    """Runs the tests and returns the names of those that failed."""
    result = unittest.TextTestRunner().run(suite)
    names = []
    for test, _ in result.failures + result.errors:
        # A subtest belongs to the test that can be run again.
        name = getattr(test, "test_case", test).id()
        if name not in names:
            names.append(name)
    return names + [test.id() for test in result.unexpectedSuccesses]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
