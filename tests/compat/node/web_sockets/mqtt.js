'use strict';
// MQTT.js over a WebSocket: node mqtt.js, with BROKER_URL in the environment.
const mqtt = require('mqtt');

const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));

async function exchange(version) {
  const options = { username: 'guest', password: 'guest', protocolVersion: version, clientId: `mqtt.js-${version}`, reconnectPeriod: 0 };
  const client = await mqtt.connectAsync(process.env.BROKER_URL, options);
  const granted = await client.subscribeAsync(`told/${version}/+`, { qos: 1 });
  const received = [];
  const all = new Promise((resolve) => {
    client.on('message', (topic, payload) => {
      received.push([topic, payload.length, payload.toString('latin1', 0, 5)]);
      if (received.length === 103) resolve();
    });
  });
  await client.publishAsync(`told/${version}/first`, 'hello', { qos: 1 });
  await client.publishAsync(`told/${version}/large`, Buffer.alloc(300_000, 'x'), { qos: 1 });
  await Promise.all(Array.from({ length: 100 }, () => client.publishAsync(`told/${version}/many`, 'again', { qos: 1 })));
  await client.publishAsync(`told/${version}/last`, 'done', { qos: 1 });
  await all;
  await client.endAsync();
  return { granted: granted[0].qos, first: received.slice(0, 2), count: received.length, last: received.at(-1) };
}

async function refused() {
  const client = mqtt.connect(process.env.BROKER_URL, { username: 'guest', password: 'wrong', reconnectPeriod: 0 });
  const error = await once(client, 'error');
  client.end(true);
  return error.message;
}

async function main() {
  process.stdout.write(JSON.stringify({ v4: await exchange(4), v5: await exchange(5), refused: await refused() }));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
