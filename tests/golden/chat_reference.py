"""chat_reference.py - chat templates by jinja2 with the settings of transformers (utils/chat_template_utils.py of 5.24).
For make_chat.py and tests/cli/. SPDX-License-Identifier: Apache-2.0"""
import datetime
import json
import warnings

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1764201600  # seconds since 1970, 2025-11-27


class Generation(jinja2.ext.Extension):
    """The tag of transformers: its block is output, and its range of characters is noted."""
    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        self.blocks, self.spans = [], []
        environment.generation = self

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("support"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def support(self, context, caller):
        text = caller()
        start = len("".join(self.blocks))
        self.spans.append((start, start + len(text)))
        return text


def make_environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    class Namespace(jinja2.utils.Namespace):
        """Names that begin with an underscore cannot be stored."""
        def __init__(*args, **kwargs):  # noqa: N805 - namespace(self=...) is valid
            for name in dict(*args[1:], **kwargs):
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(*args, **kwargs)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(name)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["namespace"] = Namespace
    return environment


warnings.simplefilter("ignore")  # Python compiles what jinja2 makes of random expressions
ENVIRONMENT = make_environment()


class Theirs:
    """Output bytes and spans of bytes, or None and the error."""

    def __init__(self, text):
        try:
            self.template, self.error = ENVIRONMENT.from_string(text), None
        except Exception as error:  # noqa: BLE001 - a template may fail in any way
            self.template, self.error = None, error

    def render(self, variables):
        if self.template is None:
            return None, self.error
        generation = ENVIRONMENT.generation
        generation.blocks, generation.spans = [], []
        context = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        try:
            for block in self.template.generate(context):
                generation.blocks.append(block)
            text = "".join(generation.blocks)
            spans = [tuple(len(text[:i].encode()) for i in span) for span in generation.spans]
            return text.encode(), spans
        except Exception as error:  # noqa: BLE001
            return None, error
