"""Serves the digits over HTTP: images are classified while weights are replaced. Needs NumPy, and no PyTorch.

usage: serve.py PACKAGE [--port 8000] [--threads 1] [--device cuda:0]

    GET  /          what the model takes and gives, as text
    POST /classify  float32 images of 8 x 8 grey values, 0 to 16, as raw bytes; gives {"digits": [..], "logits": [[..], ..]}
    PUT  /weights   new weights as an .npz file; gives {"swaps": N}

Each request has a thread. Calls run without the interpreter's lock, and an answer comes from one set of weights, whatever is
swapped meanwhile. Make the package with: inrush compile examples/digits/digits.pt2 -o digits.inrush
"""

from __future__ import annotations

import argparse
import io
import json
import threading
import zipfile
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import inrush_runtime

IMAGE_BYTES = 8 * 8 * 4
# Larger bodies are refused before they are read.
MAX_BODY = 64 << 20


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # Connections that wait to be accepted.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], model: inrush_runtime.Model) -> None:
        super().__init__(address, Handler)
        self.model = model
        self.swaps = 0
        # An update and its swap belong together.
        self.updating = threading.Lock()

    def classify(self, body: bytes) -> dict:
        if not body or len(body) % IMAGE_BYTES:
            raise inrush_runtime.InputError(f"{len(body)} bytes are no images of {IMAGE_BYTES} bytes")
        logits = self.model(np.frombuffer(body, np.float32).reshape(-1, 1, 8, 8))
        if isinstance(logits, inrush_runtime.DeviceTensor):
            logits = logits.numpy()
        return {"digits": logits.argmax(1).tolist(), "logits": logits.tolist()}

    def replace(self, body: bytes) -> dict:
        try:
            weights = dict(np.load(io.BytesIO(body), allow_pickle=False))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise inrush_runtime.InputError(f"no .npz file: {error}") from error
        with self.updating:
            self.model.update_weights(weights)
            self.model.swap_weights()
            self.swaps += 1
            return {"swaps": self.swaps}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.reply(HTTPStatus.OK, {"model": repr(self.server.model), "signature": repr(self.server.model.signature)})

    def do_POST(self) -> None:
        self.answer("/classify", self.server.classify)

    def do_PUT(self) -> None:
        self.answer("/weights", self.server.replace)

    def answer(self, path: str, function) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        if length > MAX_BODY:
            self.close_connection = True
            return self.reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"{length} bytes are too many"})
        body = self.rfile.read(length)
        if self.path != path:
            return self.reply(HTTPStatus.NOT_FOUND, {"error": f"{self.command} is for {path}"})
        try:
            self.reply(HTTPStatus.OK, function(body))
        except inrush_runtime.InputError as error:
            self.reply(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except inrush_runtime.Error as error:
            self.reply(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)})

    def reply(self, status: HTTPStatus, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Says nothing: a line for each request is too much under load."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package")
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free")
    parser.add_argument("--threads", type=int, default=1, help="of each call on the CPU")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 for a package with a target that is a GPU")
    options = parser.parse_args()
    model = inrush_runtime.load(options.package, threads=options.threads, device=options.device)
    server = Server(("127.0.0.1", options.port), model)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
