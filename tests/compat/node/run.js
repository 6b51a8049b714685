'use strict';
// Run one scenario and print its result as JSON: node run.js NAME, with AMQP_URL and PREFIX in the environment.
// A scenario is an async function of {amqplib, url, queue, exchange, until, options}; queue() and exchange() hand out
// names the caller deletes afterwards. amqplib is found through NODE_PATH.
const path = require('node:path');
const amqplib = require('amqplib');

const { AMQP_URL: url, PREFIX: prefix } = process.env;
let count = 0;

async function until(condition) {
  // the caller ends a scenario that waits in vain
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
}

async function main() {
  const scenario = require(path.join(__dirname, 'scenarios', `${process.argv[2]}.js`));
  const made = { queues: [], exchanges: [] };
  const name = (kind) => () => {
    count += 1;
    made[kind].push(`${prefix}-${count}`);
    return `${prefix}-${count}`;
  };
  const context = { amqplib, url, until, queue: name('queues'), exchange: name('exchanges') };
  const result = await scenario(context);
  const cleaner = await amqplib.connect(url);
  const channel = await cleaner.createChannel();
  for (const queue of made.queues) await channel.deleteQueue(queue);
  for (const exchange of made.exchanges) await channel.deleteExchange(exchange);
  await cleaner.close();
  process.stdout.write(JSON.stringify(result));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
