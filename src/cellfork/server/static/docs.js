"use strict";
// Shows the specifications of this server. Text is only ever set as text: nothing in them becomes markup.
const METHODS = ["get", "post", "put", "patch", "delete"];

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function operation(path, method, told) {
  const details = element("details");
  const summary = element("summary");
  summary.append(element("span", method.toUpperCase(), "method"), element("code", path), ` ${told.summary || ""}`);
  details.append(summary);
  if (told.description) details.append(element("p", told.description));
  for (const part of ["parameters", "requestBody", "responses"]) {
    if (told[part] === undefined) continue;
    details.append(element("div", part, "note"), element("pre", JSON.stringify(told[part], null, 1)));
  }
  return details;
}

function show(specification, main) {
  main.append(element("h2", specification.info.title), element("p", specification.info.description, "note"));
  for (const [path, item] of Object.entries(specification.paths)) {
    for (const method of METHODS) if (item[method]) main.append(operation(path, method, item[method]));
  }
  const schemas = (specification.components || {}).schemas || {};
  for (const [name, schema] of Object.entries(schemas)) {
    const details = element("details");
    details.append(element("summary", `schema ${name}`), element("pre", JSON.stringify(schema, null, 1)));
    main.append(details);
  }
}

async function start() {
  const main = document.getElementById("specifications");
  const own = await (await fetch("/openapi.json")).json();
  show(own, main);
  for (const path of Object.keys(own.paths).filter((name) => name.startsWith("/openapi/"))) {
    const answer = await fetch(path);
    if (answer.ok) show(await answer.json(), main);
  }
}

start().catch((error) => document.getElementById("specifications").append(element("p", String(error))));
