'use strict';
// stompjs: node stomp.js, with BROKER_URL in the environment. Once with text frames, as it sends them, once with binary ones.
Object.assign(globalThis, { WebSocket: require('ws') });
const { Client } = require('@stomp/stompjs');

function exchange(forceBinaryWSFrames) {
  return new Promise((resolve, reject) => {
    const received = [];
    const destination = `/topic/told.${forceBinaryWSFrames}`;
    const client = new Client({
      brokerURL: process.env.BROKER_URL,
      connectHeaders: { login: 'guest', passcode: 'guest', host: '/' },
      reconnectDelay: 0,
      heartbeatIncoming: 4000,
      heartbeatOutgoing: 4000,
      forceBinaryWSFrames,
      onStompError: (frame) => reject(new Error(frame.headers.message)),
      onWebSocketError: reject,
      onConnect: () => {
        client.subscribe(destination, (message) => {
          received.push([message.body.length, message.body.slice(0, 5)]);
          message.ack();
          if (received.length < 3) return;
          const version = client.connectedVersion;
          const subprotocol = client.webSocket.protocol;
          client.deactivate().then(() => resolve({ version, subprotocol, received }));
        }, { ack: 'client-individual' });
        client.publish({ destination, body: 'héllo ✓' });
        client.publish({ destination, body: 'x'.repeat(300_000) });
        client.publish({ destination, body: 'done' });
      },
    });
    client.activate();
  });
}

function refused() {
  return new Promise((resolve) => {
    const client = new Client({
      brokerURL: process.env.BROKER_URL,
      connectHeaders: { login: 'guest', passcode: 'wrong', host: '/' },
      reconnectDelay: 0,
      onStompError: (frame) => {
        client.deactivate();
        resolve(frame.headers.message + frame.body);
      },
    });
    client.activate();
  });
}

async function main() {
  process.stdout.write(JSON.stringify({ text: await exchange(false), binary: await exchange(true), refused: await refused() }));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
