"""A small shop on loopback for tests of the browser: a login, a form, links, and malicious pages."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PRODUCTS = {"1": ("Red lamp", "12.50"), "2": ("Blue chair", "80.00")}


class Site:
    """Its address, its orders, and the requests that it received."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        """Method and path of every request."""
        self.orders: list[str] = []
        self.elsewhere = "http://127.0.0.1:9"
        """The target of the malicious pages."""
        self.url = ""


@contextmanager
def site() -> Iterator[Site]:
    """Serve a shop from a thread."""
    state = Site()

    class Handler(_Handler):
        site = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.site.requests.append(f"GET {self.path}")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        folders = parts.path.strip("/").split("/")
        is_logged_in = "user=ada" in self.headers.get("Cookie", "")
        match folders:
            case [""]:
                links = "".join(
                    f'<li><a href="/product/{number}">{name}</a></li>'
                    for number, (name, _) in PRODUCTS.items()
                )
                greeting = "Hello Ada" if is_logged_in else '<a href="/login">Sign in</a>'
                self._page(
                    "Shop",
                    f"<p>{greeting}</p><ul>{links}</ul>"
                    '<form action="/search"><input name="q" aria-label="Search"><select name="sort" '
                    'aria-label="Sort by"><option>Name</option><option>Price</option></select>'
                    '<button>Go</button></form><a href="/product/1" target="_blank">In a new tab</a>'
                    '<div style="height:2000px"></div><p>The end of the page</p>',
                )
            case ["login"]:
                self._page(
                    "Sign in",
                    '<form method="post"><label>Email <input name="user"></label><label>Password <input '
                    'name="word" type="password"></label><button>Sign In</button></form>',
                )
            case ["search"]:
                self._page(f"Results for {query.get('q')}", f"<p>by {query.get('sort')}</p>")
            case ["product", number]:
                name, price = PRODUCTS[number]
                self._page(
                    name,
                    f'<h1>{name}</h1><p>Price: $<span id="price">{price}</span> &amp; free &lt;mail&gt;</p>'
                    f'<form method="post" action="/order/{number}"><button>Order</button></form>',
                )
            case ["orders"]:
                orders = "".join(f"<li>{name}</li>" for name in self.site.orders)
                self._page("Orders", f'<ol id="orders">{orders}</ol>')
            case ["status", code]:
                self._send(int(code), f"<title>Status {code}</title>")
            case ["harm", "redirect"]:
                self._send(302, "", {"Location": f"{self.site.elsewhere}/secret"})
            case ["harm", "page"]:
                away = self.site.elsewhere
                self._page(
                    "Harm",
                    f'<img src="{away}/image"><iframe src="{away}/frame"></iframe><a href="{away}/link">'
                    'out</a><a href="file:///etc/passwd">file</a><a href="/harm/download">download</a><p id='
                    '"said"></p>'
                    f"<script>fetch('{away}/fetch', {{mode: 'no-cors'}}).then(() => 'reached', () => 'kept')"
                    f".then(said => document.getElementById('said').textContent = 'fetch ' + said);"
                    f"new WebSocket('{away.replace('http', 'ws')}/socket');"
                    "navigator.serviceWorker.register('/harm/worker').catch(() => 0);"
                    "</script>",
                )
            case ["harm", "hang"]:
                self._page("Hang", "<script>while (true) {}</script>")
            case ["harm", "tabs"]:
                self._page(
                    "Tabs", "<button onclick=\"for (let i = 0; i < 20; i++) window.open('/')\">More</button>"
                )
            case ["harm", "download"]:
                self._send(200, "data", {"Content-Disposition": "attachment; filename=x.bin"})
            case _:
                self._send(404, "<title>Not found</title>")

    def do_POST(self) -> None:
        self.site.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        if self.path == "/login":
            right = fields == {"user": "emma.lopez@gmail.com", "word": "Password.123"}
            cookie = {"Set-Cookie": "user=ada; Path=/; Max-Age=86400"} if right else {}
            self._send(303, "", {"Location": "/" if right else "/login", **cookie})
        else:
            self.site.orders.append(PRODUCTS[self.path.rpartition("/")[2]][0])
            self._send(303, "", {"Location": "/orders"})

    def _page(self, title: str, body: str) -> None:
        self._send(200, f"<!doctype html><html lang=en><title>{title}</title><body>{body}</body></html>")

    def _send(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        data = body.encode()
        self.send_response(status)
        for name, value in {"Content-Type": "text/html; charset=utf-8", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...
