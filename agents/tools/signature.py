"""What a function takes, told to a model and held against what the model gives.

Owns the way from signature and docstring to JSON schema, and from an agent's arguments to Python values, both
by one pydantic model. Calling is `tool.py`'s.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from docstring_parser import DocstringStyle, ParseError, parse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from envs.errors import ConfigError

_SHOWN = 60
"""Characters of a refused value that are told."""
_ENVIRONMENT = ("reset", "step", "close")
"""What every environment has; few say that they are one."""
_CONFIG = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class ArgumentsRefused(Exception):
    """The text tells the agent which arguments are wrong, and what the tool takes."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of one tool."""

    description: str
    """Of the tool, from its docstring; empty where it has none."""
    schema: Mapping[str, Any]
    """JSON schema of the parameters, an object."""
    env: str | None
    """The parameter that is filled with the environment; not in the schema."""
    env_required: bool
    _model: type[BaseModel]
    _names: Mapping[str, str]  # of the model's fields → of the parameters

    def values(self, arguments: object) -> dict[str, Any]:
        """Keyword arguments for the function; what the agent left out is left out.

        Raises `ArgumentsRefused`.
        """
        if not isinstance(arguments, Mapping):
            raise ArgumentsRefused(
                f"the arguments must be an object, not {_short(arguments)}. {self._taken()}"
            )
        try:
            filled = self._model.model_validate(_encodable(dict(arguments)))
        except ValidationError as error:
            faults = "; ".join(_fault(dict(one)) for one in error.errors(include_url=False))
            raise ArgumentsRefused(f"{faults}. {self._taken()}") from None
        return {self._names[field]: getattr(filled, field) for field in filled.model_fields_set}

    def _taken(self) -> str:
        required = self.schema.get("required", ())
        told = [
            f"{name} ({_type_name(about)}{'' if name in required else ', optional'})"
            for name, about in self.schema.get("properties", {}).items()
        ]
        return f"It takes: {', '.join(told)}" if told else "It takes no arguments"


def read_signature(function: Callable[..., Any], *, tool: str, stateful: bool, method: bool) -> Signature:
    """`method`: the first parameter is the instance, and none of the agent's.

    Raises `ConfigError` for a signature that cannot be put as a JSON object.
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
    own = [p for p in parameters if p.name != env]
    summary, told = _docstring(function)
    if strangers := told.keys() - {p.name for p in parameters}:
        raise ConfigError(
            f"tool {tool!r}: the docstring describes {', '.join(sorted(strangers))}, which is no parameter; "
            "take it out or correct its name"
        )
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for index, parameter in enumerate(own):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {tool!r}: parameter {parameter} has no name that an agent could give it by; "
                "name every parameter"
            )
        if parameter.name not in hints:
            raise ConfigError(f"tool {tool!r}: parameter {parameter.name!r} has no type; annotate it")
        field = f"argument_{index:03}"  # parameters may have names that pydantic keeps for itself
        names[field] = parameter.name
        about: dict[str, Any] = {"alias": parameter.name}
        if parameter.name in told:
            about["description"] = told[parameter.name]
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[field] = (hints[parameter.name], Field(default, **about))
    try:
        model = create_model(tool, __config__=_CONFIG, **fields)
        schema = model.model_json_schema(schema_generator=_Untitled)
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise ConfigError(
            f"tool {tool!r}: a parameter's type cannot be put as JSON ({str(error).splitlines()[0]})"
        ) from None
    schema.pop("title", None)
    required = any(p.name == env and p.default is p.empty for p in parameters)
    return Signature(summary, schema, env, required, model, names)


class _Untitled(GenerateJsonSchema):
    """Without the names of fields again as titles, which cost a prompt tokens."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _env_parameter(
    parameters: list[inspect.Parameter], hints: Mapping[str, Any], *, tool: str, stateful: bool
) -> str | None:
    annotated = [p.name for p in parameters if _is_environment(hints.get(p.name))]
    found = annotated or [p.name for p in parameters if p.name == "env" and stateful]
    if stateful and len(found) != 1:
        raise ConfigError(
            f"tool {tool!r} is stateful and has {len(found)} parameters for the environment; give it one, "
            "annotated as Environment or named env"
        )
    if found and not stateful:
        raise ConfigError(f"tool {tool!r}: parameter {found[0]!r} is an environment; add stateful=True")
    return found[0] if found else None


def _is_environment(annotation: Any) -> bool:
    if get_origin(annotation) is not None:
        return any(_is_environment(part) for part in get_args(annotation))
    return isinstance(annotation, type) and all(hasattr(annotation, name) for name in _ENVIRONMENT)


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The tool's description, and that of each parameter under `Args:`."""
    source = function if inspect.isroutine(function) else type(function).__call__
    text = inspect.cleandoc(source.__doc__ or "")
    try:
        parsed = parse(text, DocstringStyle.GOOGLE)
    except ParseError:  # another style; its whole text describes the tool
        return text, {}
    told = [part for part in (parsed.short_description, parsed.long_description) if part]
    return "\n\n".join(told), {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}


def _encodable(value: Any) -> Any:
    """`value` without halves of characters, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(str(key)): _encodable(inner) for key, inner in value.items()}
    return [_encodable(inner) for inner in value] if isinstance(value, list) else value


def _fault(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "extra_forbidden":
        return f"{_short(where)} is no argument of it"
    return f"{where}: {error['msg']}, not {_short(error['input'])}"


def _type_name(about: Mapping[str, Any]) -> str:
    if "enum" in about:
        return " or ".join(repr(one) for one in about["enum"])
    if "anyOf" in about:
        return " or ".join(_type_name(one) for one in about["anyOf"])
    return str(about.get("type", "object" if "$ref" in about else "anything"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
