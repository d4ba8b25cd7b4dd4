"""An application that nobody here wrote as a site for agents: django-oscar, a shop and its dashboard.

    python shop.py make DATA             a folder with the shop as every episode is to find it
    python shop.py serve DATA 8001 9001  the shop at http://127.0.0.1:8001, its resets at http://127.0.0.1:9001

It runs in an environment of its own (requirements.txt), and knows nothing of minirl; rules.py and tasks.jsonl
make tasks of it. All that visitors change is in one database, so a reset is a copy of that file; the index
that is searched stays as it was made.
"""

import os
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MADE = "made.sqlite3"
DATABASE = "shop.sqlite3"
PASSWORD = "agents-welcome"
PRODUCTS = {  # by category: title, price and number in stock
    "Green tea": [("Sencha", "9.50", 40), ("Gyokuro", "24.00", 12), ("Longjing", "18.25", 30)],
    "Black tea": [("Assam", "6.75", 55), ("Keemun", "11.20", 21), ("Darjeeling", "16.00", 8)],
    "Teapots": [("Iron teapot", "49.90", 5), ("Glass teapot", "27.40", 14), ("Clay teapot", "35.00", 9)],
}
ADDRESS = {"first_name": "A", "last_name": "Customer", "line1": "1 High Street", "line4": "London"}
ABOUT = "<p>We sell tea.</p><p>Orders leave the house within two days.</p>"
MIDDLEWARE = """
    django.contrib.sessions.middleware.SessionMiddleware
    django.middleware.csrf.CsrfViewMiddleware
    django.contrib.auth.middleware.AuthenticationMiddleware
    django.contrib.messages.middleware.MessageMiddleware
    oscar.apps.basket.middleware.BasketMiddleware
    django.contrib.flatpages.middleware.FlatpageFallbackMiddleware
"""
PROCESSORS = """
    django.template.context_processors.request
    django.contrib.auth.context_processors.auth
    django.contrib.messages.context_processors.messages
    oscar.apps.search.context_processors.search_form
    oscar.apps.checkout.context_processors.checkout
    oscar.apps.communication.notifications.context_processors.notifications
    oscar.core.context_processors.metadata
"""
TEMPLATES = {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}
WHOOSH = "haystack.backends.whoosh_backend.WhooshEngine"
SETTINGS = {
    "SECRET_KEY": "of a shop on loopback",
    "ALLOWED_HOSTS": ["127.0.0.1"],
    "ROOT_URLCONF": "shop",
    "SITE_ID": 1,
    "MIDDLEWARE": MIDDLEWARE.split(),
    "TEMPLATES": [TEMPLATES | {"OPTIONS": {"context_processors": PROCESSORS.split()}}],
    "AUTHENTICATION_BACKENDS": ["oscar.apps.customer.auth_backends.EmailBackend"],
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],  # a login takes no time
    "EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend",
    "STATIC_URL": "/static/",
    "USE_TZ": True,
    "TIME_ZONE": "UTC",
    "OSCAR_THUMBNAILER": "shop.NoPicture",
    "OSCAR_INITIAL_ORDER_STATUS": "Pending",
    "OSCAR_ORDER_STATUS_PIPELINE": {"Pending": ("Cancelled", "Being packed"), "Being packed": ("Sent",)},
    "HAYSTACK_SIGNAL_PROCESSOR": "haystack.signals.BaseSignalProcessor",  # the index is made once
}


class NoPicture:
    """What stands in the pages for a product's picture."""

    url = "/static/oscar/img/image_not_found.jpg"

    def generate_thumbnail(self, source: Any, **options: Any) -> "NoPicture":
        return self

    def delete_thumbnails(self, source: Any) -> None: ...


def configure(folder: Path) -> None:
    """Set Django up with the shop in a folder."""
    import django
    import oscar
    from django.conf import settings
    from oscar import defaults

    usual = {name: getattr(defaults, name) for name in dir(defaults) if name.isupper()}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / DATABASE}
    settings.configure(
        **usual | SETTINGS,
        INSTALLED_APPS=oscar.INSTALLED_APPS,
        DATABASES={"default": database},
        HAYSTACK_CONNECTIONS={"default": {"ENGINE": WHOOSH, "PATH": str(folder / "index")}},
    )
    django.setup()


def make(folder: Path) -> None:
    """Make the shop: products, a customer with an address and an order, a member of staff, a page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MADE, DATABASE):
        (folder / name).unlink(missing_ok=True)
    configure(folder)
    from django.contrib.flatpages.models import FlatPage
    from django.core.management import call_command
    from oscar.core.loading import get_model
    from oscar.test.factories import create_basket, create_order

    call_command("migrate", verbosity=0)
    country = get_model("address", "Country").objects.create(
        iso_3166_1_a2="GB", printable_name="United Kingdom", name="UNITED KINGDOM", is_shipping_country=True
    )
    User = get_model("auth", "User")
    customer = User.objects.create_user("customer", "customer@shop.test", PASSWORD)
    User.objects.create_user("staff", "staff@shop.test", PASSWORD, is_staff=True, is_superuser=True)
    get_model("address", "UserAddress").objects.create(
        user=customer, country=country, postcode="N1 9GU", **ADDRESS
    )
    _fill(get_model)
    page = FlatPage.objects.create(url="/about/", title="About us", content=ABOUT)
    page.sites.add(SETTINGS["SITE_ID"])
    basket = create_basket(empty=True)
    basket.add_product(get_model("catalogue", "Product").objects.get(title="Longjing"))
    create_order("100001", basket, customer)
    call_command("rebuild_index", interactive=False, verbosity=0)
    shutil.copy(folder / DATABASE, folder / MADE)


def _fill(get_model: Any) -> None:
    """Put the products on the shelves."""
    kind = get_model("catalogue", "ProductClass").objects.create(name="Goods")
    partner = get_model("partner", "Partner").objects.create(name="Warehouse")
    Category = get_model("catalogue", "Category")
    Product = get_model("catalogue", "Product")
    for category_name, products in PRODUCTS.items():
        category = Category.add_root(name=category_name)
        for title, price, number in products:
            product = Product.objects.create(product_class=kind, title=title, description=f"<p>{title}.</p>")
            product.categories.add(category)
            product.stockrecords.create(partner=partner, partner_sku=title, price=price, num_in_stock=number)


def serve(folder: Path, port: int, reset_port: int) -> None:
    """Serve the shop on loopback until the process is ended, and resets of it on another port."""
    configure(folder)
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.servers.basehttp import run
    from django.core.wsgi import get_wsgi_application

    ResetHandler.folder = folder
    resets = ThreadingHTTPServer(("127.0.0.1", reset_port), ResetHandler)
    threading.Thread(target=resets.serve_forever, daemon=True).start()
    run("127.0.0.1", port, StaticFilesHandler(get_wsgi_application()), threading=True)


class ResetHandler(BaseHTTPRequestHandler):
    """What a reset server is to minirl: /reset begins one, /status says when the shop is ready."""

    folder: Path

    def do_GET(self) -> None:
        if self.path == "/reset":
            reset(self.folder)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ready")


def reset(folder: Path) -> None:
    """Put the shop back to how it was made. Its server opens the database for each request, so it may run."""
    shutil.copy(folder / MADE, folder / "new.sqlite3")
    os.replace(folder / "new.sqlite3", folder / DATABASE)


def __getattr__(name: str) -> Any:
    """Return the addresses of the shop's pages, which Django looks up here once it is set up."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.apps import apps
    from django.urls import include, path

    return [path("", include(apps.get_app_config("oscar").urls[0]))]


if __name__ == "__main__":
    command, folder, *ports = sys.argv[1:]
    if command == "make":
        make(Path(folder))
    else:
        serve(Path(folder), *map(int, ports))
