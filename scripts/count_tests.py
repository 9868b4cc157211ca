#!/usr/bin/env python3
"""Counts a JUnit report of ctest: prints `PASSED FAILED SKIPPED-NAMES`; exits 1 without tests."""

import sys
import xml.etree.ElementTree


def count(path):
    passed, failed, skipped = 0, 0, []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        status = case.get("status")
        reason = case.find("skipped")
        if status == "run":
            passed += 1
        elif status == "disabled":
            skipped.append(case.get("name"))
        elif reason is not None and reason.get("message", "").startswith("SKIP_"):
            skipped.append(case.get("name"))
        else:  # it failed, or could not be run at all
            failed += 1
    return passed, failed, skipped


def main():
    try:
        passed, failed, skipped = count(sys.argv[1])
    except (OSError, xml.etree.ElementTree.ParseError):
        return 1
    print(passed, failed, " ".join(skipped))
    return 0 if passed + failed + len(skipped) else 1


if __name__ == "__main__":
    sys.exit(main())
