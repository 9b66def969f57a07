"""What the stages of a run found wrong with their results, as lines for every surface."""

from __future__ import annotations

from flows.reports.report import Report


def warning_lines(report: Report) -> list[str]:
    """Example: ["agent-rl: 2 of 3 steps made no update: all groups had equal rewards. Draw ..."]"""
    return [f"{stage}: {said}" for stage, of in report.warnings.items() for said in of]


def state_line(report: Report) -> str:
    """Example: `smoke-2026: completed with 2 warnings in 46 s`"""
    count = len(warning_lines(report))
    warned = f" with {count} warning{'s' if count > 1 else ''}" if count else ""
    return f"{report.run}: {report.state}{warned} in {report.seconds:.0f} s"
