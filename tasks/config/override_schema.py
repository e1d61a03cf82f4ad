"""The JSON schema of overrides, `{"train.lr": 1e-3}`, for servers that check a run's parameters before it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agents.formats.calls import Schema
from tasks.algorithms.algorithm import Algorithm
from tasks.algorithms.registry import ALGORITHMS
from tasks.config.pipelines import NAMED_BLOCKS, Pipeline

_OBJECT = {"type": "object"}
_ANNOTATIONS = ("title", "description", "default")
"""The annotations of a schema: its default is that of the type, and not that of a pipeline."""


def override_schemas(pipelines: Sequence[Pipeline]) -> dict[str, Schema]:
    """The JSON schema of every parameter of `pipelines`, by dotted key, those of all algorithms included.

    A block may be given as a whole, as an object; its content is left to the check of the pipeline, which
    completes it first. Of names that users choose, as for parts of the data, there are those of `pipelines`.
    """
    algorithms = [pipeline.train.algorithm for pipeline in pipelines]  # some may be a user's, module:NAME
    classes = dict(ALGORITHMS) | {algorithm.name: type(algorithm) for algorithm in algorithms}
    pipeline_schema, definitions = _definitions(tuple(classes.items()))
    values = [pipeline.model_dump(mode="json") for pipeline in pipelines]

    found: dict[str, list[Schema]] = {}
    for key, schema in _flatten(pipeline_schema, "", values, definitions):
        if schema not in found.setdefault(key, []):
            found[key].append(schema)
    for key in found:
        if key.rpartition(".")[2] in NAMED_BLOCKS:
            found[key] = [*found[key], *found[f"{key}.name"]]
    return {
        key: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for key, schemas in found.items() if key
    }


@lru_cache(maxsize=1)  # it takes 60 ms, and is the same for every deployment
def _definitions(algorithms: tuple[tuple[str, type[Algorithm]], ...]) -> tuple[Schema, dict[str, Schema]]:
    """The schema of a pipeline with one of `algorithms`, and the schemas that it refers to, by name."""
    models: list[type[BaseModel]] = [Pipeline, *(algorithm for _, algorithm in algorithms)]
    references, document = models_json_schema(
        [(model, "validation") for model in models], ref_template="{model}"
    )
    definitions: dict[str, Any] = document["$defs"]
    options = [references[algorithm, "validation"] for _, algorithm in algorithms]
    for (name, _), option in zip(algorithms, options, strict=True):
        definitions[option["$ref"]]["properties"]["name"] = {"const": name}
    definitions[Algorithm.__name__] = {"anyOf": options}
    return references[Pipeline, "validation"], definitions


def _flatten(
    schema: Schema, key: str, values: Sequence[object], definitions: Mapping[str, Schema]
) -> Iterator[tuple[str, Schema]]:
    """Keys and schemas of what `schema`, at `key`, allows; `values` are those that pipelines have there."""
    if "$ref" in schema:
        yield from _flatten(definitions[schema["$ref"]], key, values, definitions)
        return
    if options := schema.get("anyOf", schema.get("oneOf")):
        for option in options:
            yield from _flatten(option, key, values, definitions)
        return
    if schema.get("type") != "object":
        yield key, {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
        return
    yield key, _OBJECT
    blocks = [value for value in values if isinstance(value, Mapping)]
    properties = schema.get("properties")
    if properties is None:
        (content,) = schema.get("patternProperties", {"": schema.get("additionalProperties")}).values()
        properties = {name: content for block in blocks for name in block if "." not in name}
    for name, content in properties.items():
        inner = [block[name] for block in blocks if name in block]
        yield from _flatten(content, f"{key}.{name}" if key else name, inner, definitions)
