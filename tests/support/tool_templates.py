"""Chat templates that have tools, one for each native format."""

import copy
from typing import TYPE_CHECKING

from tests.support.toy import CHATML, toy_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOOLS_OF_JSON = (
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}"
    '\nWrite <tool_call>{"name": ...}</tool_call>.<|im_end|>\n{% endif %}'
)
MESSAGE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "hermes": TOOLS_OF_JSON
    + MESSAGE
    + "{% for c in m.tool_calls %}\n<tool_call>\n"
    + '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    + "\n</tool_call>{% endfor %}"
    + END,
    "qwen3": TOOLS_OF_JSON
    + MESSAGE
    + "{% for c in m.tool_calls %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    + "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n"
    + "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v }}"
    + "\n</parameter>\n{% endfor %}"
    + "</function>\n</tool_call>{% endfor %}"
    + END,
    "llama3": TOOLS_OF_JSON
    + MESSAGE
    + '{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", '
    + '"parameters": {{ c.function.arguments | tojson }}}{% endfor %}'
    + END,
}


def with_template(template: str) -> "PreTrainedTokenizerFast":
    """A toy tokenizer with `template`."""
    tokenizer = copy.deepcopy(toy_tokenizer(CHATML))
    tokenizer.chat_template = template
    return tokenizer
