"""Environment variables for one execution, in languages whose kernel has no other way than running code.

The code is always the same; names and values are data, in a string literal.  It runs silently, so that
no history and no count shows it.
"""

import base64
import json
from collections.abc import Mapping
from typing import NamedTuple

JAVASCRIPT = """{
  const given = JSON.parse(%s);
  const saved = globalThis[Symbol.for("cellfork.saved")] = {};
  for (const [name, value] of Object.entries(given)) {
    saved[name] = Deno.env.get(name) ?? null;
    Deno.env.set(name, value);
  }
}"""
JAVASCRIPT_BACK = """{
  const saved = globalThis[Symbol.for("cellfork.saved")] ?? {};
  for (const [name, value] of Object.entries(saved)) {
    if (value === null) Deno.env.delete(name); else Deno.env.set(name, value);
  }
  delete globalThis[Symbol.for("cellfork.saved")];
}"""
R = """invisible(local({
  given <- jsonlite::fromJSON(%s, simplifyVector = FALSE)
  options(cellfork.saved = lapply(setNames(names(given), names(given)), Sys.getenv, unset = NA, names = FALSE))
  do.call(Sys.setenv, given)
}))"""
R_BACK = """invisible(local({
  saved <- getOption("cellfork.saved")
  for (name in names(saved)) if (is.na(saved[[name]])) Sys.unsetenv(name) else do.call(Sys.setenv, saved[name])
  options(cellfork.saved = NULL)
}))"""
PYTHON = """exec('''
import json, os
given = json.loads(data)
os._cellfork_saved = {name: os.environ.get(name) for name in given}
os.environ.update(given)
''', {"data": %s})"""
PYTHON_BACK = """exec('''
import os
for name, value in os.__dict__.pop("_cellfork_saved", {}).items():
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
''', {})"""
JAVA = """((Runnable) () -> { try {
  var type = Class.forName("java.lang.ProcessEnvironment");
  var field = type.getDeclaredField("theEnvironment"); field.setAccessible(true);
  var raw = (java.util.Map<Object, Object>) field.get(null);
  var variable = Class.forName("java.lang.ProcessEnvironment$Variable").getDeclaredMethod("valueOf", String.class);
  var content = Class.forName("java.lang.ProcessEnvironment$Value").getDeclaredMethod("valueOf", String.class);
  variable.setAccessible(true); content.setAccessible(true);
  var saved = new java.util.HashMap<String, String[]>();
  @STEP@
} catch (ReflectiveOperationException e) { throw new IllegalStateException(e); } }).run();"""
JAVA_SET = """var data = java.util.Base64.getDecoder().decode(String.join("", %s));
  var parts = new String(data, java.nio.charset.StandardCharsets.UTF_8).split("\\0", -1);
  for (int i = 0; i + 1 < parts.length; i += 2) {
    saved.put(parts[i], new String[] {System.getenv(parts[i]), System.getProperty(parts[i])});
    raw.put(variable.invoke(null, parts[i]), content.invoke(null, parts[i + 1]));
    System.setProperty(parts[i], parts[i + 1]);
  }
  System.getProperties().put("cellfork.saved", saved);"""
JAVA_RESTORE = """var before = System.getProperties().remove("cellfork.saved");
  if (before != null) saved = (java.util.HashMap<String, String[]>) before;
  for (var entry : saved.entrySet()) {
    var name = entry.getKey(); var values = entry.getValue(); var key = variable.invoke(null, name);
    if (values[0] == null) raw.remove(key); else raw.put(key, content.invoke(null, values[0]));
    if (values[1] == null) System.clearProperty(name); else System.setProperty(name, values[1]);
  }"""
CHUNK = 32_000
"""Characters of one string literal of Java, of which the limit is 65,535 bytes."""


class Code(NamedTuple):
    """Code that sets variables, with a place for them, and code that restores them."""

    set: str
    restore: str


CODE: Mapping[str, Code] = {
    "javascript": Code(JAVASCRIPT, JAVASCRIPT_BACK),
    "typescript": Code(JAVASCRIPT, JAVASCRIPT_BACK),
    "r": Code(R, R_BACK),
    "python": Code(PYTHON, PYTHON_BACK),
    "java": Code(JAVA.replace("@STEP@", JAVA_SET), JAVA.replace("@STEP@", JAVA_RESTORE)),
}


def are_known(language: str) -> bool:
    """Tell whether variables can be set in ``language``."""
    return language in CODE


def set_all(language: str, envs: Mapping[str, str]) -> str:
    """Return code that sets ``envs``."""
    literal = _java_literals(envs) if language == "java" else json.dumps(json.dumps(dict(envs)))
    return CODE[language].set.replace("%s", literal)


def restore_all(language: str) -> str:
    """Return code that restores what the code of :func:`set_all` changed."""
    return CODE[language].restore


def _java_literals(envs: Mapping[str, str]) -> str:
    """Return names and values, each ended by a NUL, as literals of Base64: Java has no reader of JSON."""
    fields = [field for pair in envs.items() for field in pair]
    data = "".join(field + "\0" for field in fields).encode("utf-8", "surrogateescape")
    text = base64.b64encode(data).decode("ascii")
    pieces = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    return ", ".join(f'"{piece}"' for piece in pieces)
