"""The original systems, as their own kind of client has them: seed.py URL SYSTEM declare | publish FROM TO | consume"""
import json
import signal
import sys

import pika

url, system, command = sys.argv[1:4]
connection = pika.BlockingConnection(pika.URLParameters(url))
ch = connection.channel()
DRE, BUS, SERVICE, REMINDER = "sgp.fechamento.reabertura.notificacao.dre", "sme.sgp.workers", "easyweek.invoice-service", "order-reminder"


def queue(name, **args):
    ch.queue_declare(name, durable=True, arguments={k.replace("_", "-"): v for k, v in args.items()} or None)


def send(exchange, key, body, headers=None, **properties):
    ch.basic_publish(exchange, key, body, pika.BasicProperties(delivery_mode=2, headers=headers, **properties))


def say(*words):
    print(*words, flush=True)


class Laravel:
    queues = ["orders", "orders_retry"]

    def declare(self):
        for name in ("orders", "orders_retry", "orders_dlq"):
            queue(name)

    def publish(self, i, bad):
        send("", "orders", json.dumps({
            "message_id": "m-%d" % i, "timestamp": "2026-02-28T22:53:42+00:00", "version": "1.0", "source": "checkout", "queue": "orders",
            "data": {"order_id": str(i), "stock": 0 if bad else 1}, "metadata": [], "error": None, "retry_count": 0}))

    def jobs(self):
        """What Laravel's own queue driver puts there: a queued class, and Queue::push with plain data."""
        command = {"commandName": "App\\Jobs\\ShipOrder", "command": 'O:18:"App\\Jobs\\ShipOrder":1:{s:8:"order_id";s:3:"900";}'}
        plain = {"order_id": "901", "stock": 1}
        for name, job, data in (
                ("App\\Jobs\\ShipOrder", "Illuminate\\Queue\\CallQueuedHandler@call", command), ("ShipOrder", "ShipOrder@handle", plain)):
            body = {"uuid": "9b0c" + name, "displayName": name, "job": job, "maxTries": 1, "maxExceptions": 1, "failOnTimeout": False,
                    "backoff": None, "timeout": None, "data": data, "id": "k3Jq"}
            send("", "orders", json.dumps(body), {"laravel": {"attempts": 1}}, content_type="application/json", correlation_id="k3Jq")

    def handle(self, method, properties, body):
        message = json.loads(body)
        if message["data"]["stock"]:
            say("handled", message["data"]["order_id"])
        else:
            message["retry_count"] += 1
            message["error"] = {"message": "no stock", "code": "500", "trace": ""}
            send("", "orders_retry" if message["retry_count"] < 5 else "orders_dlq", json.dumps(message))
        ch.basic_ack(method.delivery_tag)


class TTLCycle:
    queues = [DRE]

    def declare(self):
        for name in (BUS, BUS + ".deadletter"):
            ch.exchange_declare(name, "direct", durable=True)
        queue(DRE, x_dead_letter_exchange=BUS + ".deadletter")
        queue(DRE + ".deadletter", x_message_ttl=400, x_dead_letter_exchange=BUS)
        queue(DRE + ".limbu")
        ch.queue_bind(DRE, BUS, DRE)
        ch.queue_bind(DRE + ".deadletter", BUS + ".deadletter", DRE)

    def publish(self, i, bad):
        send(BUS, DRE, json.dumps({"id": str(i), "email": "" if bad else "a@b.c"}))

    def handle(self, method, properties, body):
        message = json.loads(body)
        headers = properties.headers or {}
        cycles = sum(d["count"] for d in headers.get("x-death", []) if d["queue"] == DRE and d["reason"] == "rejected")
        if message["email"]:
            say("handled", message["id"])
        elif cycles + int(headers.get("x-retry-count", 0)) < 3:
            ch.basic_reject(method.delivery_tag, requeue=False)
            return
        else:
            send("", DRE + ".limbu", body)
        ch.basic_ack(method.delivery_tag)


class DelayedBackoff:
    queues = [REMINDER]

    def declare(self):
        ch.exchange_declare(REMINDER + "-dlx", "direct", durable=True)
        queue(REMINDER, x_dead_letter_exchange=REMINDER + "-dlx")
        queue(REMINDER + "-delayed-queue", x_dead_letter_exchange="", x_dead_letter_routing_key=REMINDER)
        queue(REMINDER + "-dlq")
        ch.queue_bind(REMINDER + "-dlq", REMINDER + "-dlx", REMINDER)

    def publish(self, i, bad):
        body = json.dumps({"id": str(i), "email": "" if bad else "a@b.c"})
        send("", REMINDER + "-delayed-queue", body, {"x-delay": 300, "x-original-delay": 300}, expiration="300")

    def handle(self, method, properties, body):
        message, headers = json.loads(body), dict(properties.headers or {})
        headers = {k: v for k, v in headers.items() if k in ("x-original-delay", "x-retry-count")}
        if message["email"]:
            say("handled", message["id"])
        else:
            count = int(headers.get("x-retry-count", 0)) + 1
            headers["x-retry-count"] = count
            if count <= 3:
                delay = int(headers.get("x-original-delay", 300)) * 2 ** (count - 1)
                send("", REMINDER + "-delayed-queue", body, headers, expiration=str(delay))
            else:
                send(REMINDER + "-dlx", REMINDER, body, headers)
        ch.basic_ack(method.delivery_tag)


class ServiceBus:
    queues = [SERVICE]

    def declare(self):
        ch.exchange_declare("easyweek.bus", "topic", durable=True)
        ch.exchange_declare(SERVICE, "topic", durable=True)  # stands in for the delayed exchange, which needs a plugin
        queue(SERVICE, x_dead_letter_exchange=SERVICE + ".failed")
        queue(SERVICE + ".failed")
        ch.queue_bind(SERVICE, SERVICE, "#")
        for event in ("invoice.*", "user.#", "system.ping.1"):
            ch.queue_bind(SERVICE, "easyweek.bus", event)

    def publish(self, i, bad):
        event = "user.created" if i % 2 and not bad else "invoice.created"
        send("easyweek.bus", event, json.dumps({"id": str(i), "customer": "" if bad else "c"}), type=event, message_id="m-%d" % i)

    def handle(self, method, properties, body):
        message, headers = json.loads(body), dict(properties.headers or {})
        if not properties.type:
            say("untyped", message["id"])
        if message["customer"] or properties.type.startswith("user."):
            say("handled", message["id"])
        else:
            attempt = int(headers.get("x-retry-count", 0)) + 1
            again = {"x-retry-count": attempt, "x-delay": 1000} if attempt < 3 else {"x-retry-count": attempt, "consumer_error": "no customer"}
            to = (SERVICE, method.routing_key) if attempt < 3 else ("", SERVICE + ".failed")
            send(*to, body, again, type=properties.type, message_id=properties.message_id)
        ch.basic_ack(method.delivery_tag)


original = {"laravel": Laravel, "ttl-cycle": TTLCycle, "delayed-backoff": DelayedBackoff, "service-bus": ServiceBus}[system]()
if command in ("declare", "jobs"):
    getattr(original, command)()
elif command == "publish":
    for i in range(int(sys.argv[4]), int(sys.argv[5])):
        original.publish(i, bad=i % 5 == 0)
else:
    def handle(_, method, properties, body):
        """It ends before or after it handles and acks a message, so that no other handles the message too."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        original.handle(method, properties, body)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    ch.basic_qos(prefetch_count=1)
    for name in original.queues:
        ch.basic_consume(name, handle)
    say("ready")
    ch.start_consuming()
connection.close()
