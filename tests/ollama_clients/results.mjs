// Turns what the JavaScript client returns or throws into values that JSON can hold.

export async function collect(stream) {
  const lines = [];
  for await (const line of await stream) lines.push(line);
  return lines;
}

export async function fail(call) {
  try {
    await call;
  } catch (error) {
    return { status: error.status_code, text: error.message };
  }
  return null;
}
