'use strict';
// One run of rhea against the broker in AMQP_URL: send to QUEUE, receive, answer in different ways, print what came as
// JSON. rhea is found through NODE_PATH.
const rhea = require('rhea');

const { AMQP_HOST: host, AMQP_PORT: port, QUEUE: queue } = process.env;
const COUNT = 5000;
const told = { accepted: 0, released: 0, bodies: [], redelivered: [], total: 0 };

const container = rhea.create_container();
const connection = container.connect({
  host,
  port: Number(port),
  hostname: 'vhost:/',
  username: 'guest',
  password: 'guest',
  reconnect: false,
});

connection.on('connection_open', () => {
  told.product = connection.properties.product;
  const sender = connection.open_sender(`/queues/${queue}`);
  const nowhere = connection.open_sender('/exchanges/amq.direct/nobody-has-this');
  let sent = 0;
  sender.on('sendable', () => {
    while (sender.sendable() && sent < COUNT) {
      sent += 1;
      sender.send({ message_id: sent, durable: true, application_properties: { n: sent }, body: `message ${sent}` });
    }
  });
  sender.on('accepted', () => {
    told.accepted += 1;
    if (told.accepted === COUNT) receive();
  });
  nowhere.once('sendable', () => nowhere.send({ body: 'x' }));
  nowhere.on('released', () => {
    told.released += 1;
  });
});

function receive() {
  let first;
  const receiver = connection.open_receiver({
    source: `/queues/${queue}`,
    autoaccept: false,
    credit_window: 1000,
  });
  receiver.on('message', ({ message, delivery }) => {
    if (told.bodies.length < 3) told.bodies.push([message.body, message.application_properties.n, message.durable]);
    if (message.body === 'message 1') {
      told.redelivered.push(message.first_acquirer);
      if (told.redelivered.length === 1) {
        first = delivery; // answered alone, later: rhea joins the answers that follow to one like it
        return;
      }
    }
    told.total += 1;
    delivery.accept();
    if (told.total === 500) setTimeout(() => first.release({ delivery_failed: true }), 50);
    if (told.total === COUNT) connection.close();
  });
}

connection.on('connection_close', () => {
  console.log(JSON.stringify(told));
});
connection.on('disconnected', ({ error }) => {
  if (error) {
    console.error(error);
    process.exit(1);
  }
});
