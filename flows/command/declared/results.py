"""What stages made."""

from __future__ import annotations

from typing import Literal

from flows.command.app import Json, app, artifacts_app, console, examples, sessions_app


@artifacts_app.default
def artifacts(*, run: str = "", kind: str = "", root: str = "", json: Json = False) -> int:
    """List the artifacts in the store, with the run and stage that made each, and its score.

    Args:
        run: Show only what this run made or found: a run's id or name, or a recipe's name.
        kind: Show only artifacts of this kind of stage, e.g. rl.
        root: The store to look in, e.g. s3://bucket/prefix; default: the latest run's.
    """
    from flows.command.artifacts import show_artifacts

    return show_artifacts(run, kind, root, json, console)


@app.command(
    help_epilogue=examples(
        "rollouts",
        "rollouts agent-rl --step 20: --reward :0.5",
        "rollouts evaluate --run cpu-demo --expert agent --sort longest",
        "rollouts 3f09c2b1 --limit 100 --json > samples.json",
    )
)
def rollouts(
    artifact: str = "",
    /,
    *,
    run: str = "",
    step: str = "",
    status: str = "",
    reward: str = "",
    domain: str = "",
    expert: str = "",
    sort: Literal["step", "best", "worst", "longest"] = "step",
    limit: int = 10,
    root: str = "",
    json: Json = False,
) -> int:
    """Browse an artifact's samples: text and tokens, what was trained on, reward and its reason.

    What the model wrote is bold and green on a terminal, and between double brackets elsewhere;
    what an environment answered is neither.

    Args:
        artifact: A stage's name, or a digest (or its beginning); default: the run's last stage that
            kept samples.
        run: Whose stage: a run's id or name, or a recipe's name (its latest run); empty is the
            latest run.
        step: Only samples of these training steps: 7, 5:9, 5: or :9.
        status: Only samples that ended so: completed, truncated, malformed, aborted or failed.
        reward: Only samples with a reward in this range, e.g. 0:0.5, 0.9: or 1.
        domain: Only samples of this domain.
        expert: Only samples of models of this expert.
        sort: The order: as they were sampled, by reward, or by trained tokens.
        limit: How many samples to show.
        root: The store to look in; default: the run's.
    """
    from flows.command.rollouts import Wanted, show_rollouts

    wanted = Wanted.of(step, status, reward, domain, expert)
    return show_rollouts(artifact, run, wanted, sort, limit, root, json, console)


@sessions_app.default
@sessions_app.command(name="diff", help_epilogue=examples("sessions diff agent-rl --limit 1"))
def sessions(
    artifact: str = "",
    /,
    *,
    run: str = "",
    step: str = "",
    limit: int = 10,
    root: str = "",
    json: Json = False,
) -> int:
    """Show, turn by turn, what a harness sent and what was sampled, and where the two differ.

    Args:
        artifact: A stage's name, or a digest (or its beginning); default: the run's last stage that
            kept samples.
        run: Whose stage: a run's id or name, or a recipe's name (its latest run); empty is the
            latest run.
        step: Only samples of these training steps: 7, 5:9, 5: or :9.
        limit: How many samples to show.
        root: The store to look in; default: the run's.
    """
    from flows.command.sessions import show_sessions

    return show_sessions(artifact, run, step, limit, root, json, console)
