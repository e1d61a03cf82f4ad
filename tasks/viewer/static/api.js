// Requests. Each names the run and what is wanted of it; a view that is left gives its requests up.

export class ApiError extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

export async function get(name, params = {}, signal) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") query.append(key, one);
    }
  }
  return read(await send(`api/${name}?${query}`, { signal }));
}

export async function post(name, body, more = {}) {
  const headers = { "content-type": "application/json", ...more };
  return read(await send(`api/${name}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

// What acts needs the key that only the viewer's own pages can read. A viewer that was started anew has another.
export async function act(name, body) {
  const { key } = await get("key");
  return post(name, body, { "x-wingspan-key": key });
}

async function send(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The viewer does not answer. Is `wingspan view` still running?", 0);
  }
}

async function read(answer) {
  let body = null;
  try {
    body = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (answer.ok) throw new ApiError("The viewer's answer was cut off.", 0);
    // not JSON: the status says enough
  }
  if (!answer.ok) throw new ApiError(body?.error ?? `the viewer answered with status ${answer.status}`, answer.status);
  return body;
}

export const liveImageUrl = (id, turn, index) =>
  `api/live-image?${new URLSearchParams({ id, turn, number: index })}`;

export const imageUrl = (run, address, turn, index) =>
  `api/image?${new URLSearchParams({ run, address, turn, number: index })}`;
