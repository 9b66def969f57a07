"""Tasks of Inspect."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import Tool, tool


@task
def sums(size: int = 6) -> Task:
    samples = [Sample(input=f"{n}+1?", target=str(n + 1)) for n in range(size)]
    solver = [system_message("Add."), generate()]
    return Task(dataset=samples, solver=solver, scorer=[match(numeric=True), includes()])


@tool
def look_up() -> Tool:
    async def execute(name: str) -> str:
        """The colour of an animal.

        Args:
            name: of the animal
        """
        return {"ant": "red"}[name]

    return execute


@task
def colours() -> Task:
    samples = [Sample(input="Colour of ant?", target="red")]
    return Task(dataset=samples, solver=[use_tools(look_up()), generate()], scorer=includes())


@task
def unscored() -> Task:
    return Task(dataset=[Sample(input="x")])


@task
def boxed() -> Task:
    return Task(dataset=[Sample(input="x")], scorer=includes(), sandbox="local")
