"""A hook of mkdocs: adds the reference pages to the site (`mkdocs.yml` names this file)."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from flows.reference.command_page import command_page
from flows.reference.recipe_page import recipe_page

PAGES = {"reference/recipe.md": recipe_page, "reference/command.md": command_page}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files
