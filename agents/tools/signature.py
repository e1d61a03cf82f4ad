"""The parameters of a tool: from a signature and docstring to a JSON schema, and from an agent's arguments to
Python values, both by one pydantic model."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from docstring_parser import DocstringStyle, ParseError, parse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from agents.formats.calls import Schema
from agents.formats.fitting import find_definition
from agents.tools.types import Summary
from envs.errors import ConfigError
from envs.types import replace_surrogates_within

_MAX_VALUE_CHARS = 60
"""Characters of a rejected value that are shown."""
_ENVIRONMENT = ("reset", "step", "close")
"""Methods of every environment; few environments inherit from `Environment`."""
_CONFIG = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class InvalidArguments(Exception):
    """The text tells the agent which arguments are wrong, and which the tool takes."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of one tool."""

    description: str
    """The description of the tool, from its docstring; empty without one."""
    schema: Schema
    """JSON schema of the parameters, an object."""
    env: str | None
    """The parameter that takes the environment; not in the schema."""
    env_required: bool
    returns_summary: bool
    """Whether the function's annotation says that it may return a `Summary`."""
    _model: type[BaseModel]
    _names: Mapping[str, str]  # of the model's fields → of the parameters

    def values(self, arguments: object) -> dict[str, object]:
        """Keyword arguments for the function, without those that the agent left out.

        Raises `InvalidArguments`.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(
                f"the arguments must be an object, not {_short(arguments)}. {self._describe_parameters()}"
            )
        try:
            values = self._model.model_validate(replace_surrogates_within(dict(arguments), by="?"))
        except ValidationError as error:
            faults = "; ".join(_fault(fault) for fault in error.errors(include_url=False))
            raise InvalidArguments(f"{faults}. {self._describe_parameters()}") from None
        return {self._names[field]: getattr(values, field) for field in values.model_fields_set}

    def _describe_parameters(self) -> str:
        required_names = self.schema.get("required", ())
        texts = [
            f"{name} ({_type_name(about, self.schema)}{'' if name in required_names else ', optional'})"
            for name, about in self.schema.get("properties", {}).items()
        ]
        return f"It takes: {', '.join(texts)}" if texts else "It takes no arguments"


def read_signature(function: Callable[..., object], *, tool: str, stateful: bool, method: bool) -> Signature:
    """`method`: the first parameter is the instance.

    Raises `ConfigError` for a signature that a JSON object cannot describe.
    """
    try:
        # The wrapped `__call__` of an object has the annotations, the object has not.
        hints = get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
        parameters = list(inspect.signature(function).parameters.values())[int(method) :]
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(
            f"tool {tool!r}: its signature cannot be read ({error}); its annotations must be names that "
            "exist when the program runs"
        ) from None
    env = _env_parameter(parameters, hints, tool=tool, stateful=stateful)
    summary, texts = _docstring(function)
    if unknown := texts.keys() - {p.name for p in parameters}:
        raise ConfigError(
            f"tool {tool!r}: the docstring describes {', '.join(sorted(unknown))}, which is no parameter; "
            "remove it or correct its name"
        )
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for index, parameter in enumerate(p for p in parameters if p.name != env):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {tool!r}: parameter {parameter} cannot be passed by name; name every parameter"
            )
        if parameter.name not in hints:
            raise ConfigError(f"tool {tool!r}: parameter {parameter.name!r} has no type; annotate it")
        field = f"argument_{index:03}"  # parameters may have names that pydantic keeps for itself
        names[field] = parameter.name
        default = ... if parameter.default is parameter.empty else parameter.default
        description = texts.get(parameter.name)
        fields[field] = (hints[parameter.name], Field(default, alias=parameter.name, description=description))
    try:
        model = create_model(tool, __config__=_CONFIG, **fields)
        schema = model.model_json_schema(schema_generator=_SchemaWithoutTitles)
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise ConfigError(
            f"tool {tool!r}: a parameter's type has no JSON schema ({str(error).splitlines()[0]})"
        ) from None
    schema.pop("title", None)
    env_required = any(p.name == env and p.default is p.empty for p in parameters)
    returns_summary = _names_summary(hints.get("return"))
    return Signature(summary, schema, env, env_required, returns_summary, model, names)


class _SchemaWithoutTitles(GenerateJsonSchema):
    """Generates schemas without titles, which repeat the names of fields and cost a prompt tokens."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _env_parameter(
    parameters: list[inspect.Parameter], hints: Mapping[str, object], *, tool: str, stateful: bool
) -> str | None:
    annotated_names = [p.name for p in parameters if _is_environment(hints.get(p.name))]
    env_names = annotated_names or [p.name for p in parameters if p.name == "env" and stateful]
    if stateful and len(env_names) != 1:
        raise ConfigError(
            f"tool {tool!r} is stateful and has {len(env_names)} parameters for the environment; give it "
            "one, annotated as Environment or named env"
        )
    if env_names and not stateful:
        raise ConfigError(f"tool {tool!r}: parameter {env_names[0]!r} is an environment; add stateful=True")
    return env_names[0] if env_names else None


def _is_environment(annotation: object) -> bool:
    if get_origin(annotation) is not None:
        return any(_is_environment(part) for part in get_args(annotation))
    return isinstance(annotation, type) and all(hasattr(annotation, name) for name in _ENVIRONMENT)


def _names_summary(annotation: object) -> bool:
    return annotation is Summary or any(map(_names_summary, get_args(annotation)))


def _docstring(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """The tool's description, and that of each parameter under `Args:`."""
    source = function if inspect.isroutine(function) else type(function).__call__
    text = inspect.cleandoc(source.__doc__ or "")
    try:
        docstring = parse(text, DocstringStyle.GOOGLE)
    except ParseError:  # another style; its whole text describes the tool
        return text, {}
    texts = [part for part in (docstring.short_description, docstring.long_description) if part]
    return "\n\n".join(texts), {p.arg_name: " ".join((p.description or "").split()) for p in docstring.params}


def _fault(error: ErrorDetails) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "extra_forbidden":
        return f"{_short(where)} is no argument of it"
    return f"{where}: {error['msg']}, not {_short(error['input'])}"


def _type_name(about: Schema, root: Schema) -> str:
    if "$ref" in about:
        about = find_definition(about["$ref"], root)
    if "enum" in about:
        return " or ".join(repr(option) for option in about["enum"])
    if "anyOf" in about:
        return " or ".join(_type_name(option, root) for option in about["anyOf"])
    return str(about.get("type", "anything"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
