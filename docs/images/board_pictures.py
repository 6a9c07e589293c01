"""Draw docs/images/board-*.png: the pages of the board, as a browser shows them.

python docs/images/board_pictures.py
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import equipoise as eq

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import demo

HERE = Path(__file__).parent
WIDTH = 1180
MOST = 150_000


def save(picture: bytes, name: str) -> None:
    """As few colours as the size asks for."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for colors in (256, 128, 64, 32):
        made = io.BytesIO()
        image.quantize(colors, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
        if len(made.getvalue()) < MOST:
            break
    (HERE / f"board-{name}.png").write_bytes(made.getvalue())


def main() -> None:
    """Write the pictures beside this file."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as engine:
        root = Path(folder)
        demo.train(root / "healthy")
        demo.train(root / "fault", fault=100.0)
        both = eq.board.report([root / "healthy", root / "fault"], root / "both.html").as_uri()
        plan = eq.plan(
            optimizer="adamw", lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95), steps=20_000, schedule="cosine", warmup=500
        )
        page = eq.board.write_plan(plan, root / "plan.html").as_uri()
        pinned = "#lr=0.00316&pin=%7B%22lr%22%3A0.001%2C%22weight_decay%22%3A0.1%7D"
        wanted = {
            "run": (f"{both}#page=run1", "light", 1120, 0),
            "layers": (f"{both}#page=run1", "dark", 1000, 590),
            "compare": (both, "light", 1000, 0),
            "plan": (page + pinned, "light", 1130, 0),
            "plan-dark": (page + pinned, "dark", 1130, 0),
            "geometry": (f"{both}#page=geometry&g.step=120", "light", 1250, 0),
        }
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (address, scheme, height, top) in wanted.items():
            tab = browser.new_page(viewport={"width": WIDTH, "height": height})
            tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            tab.goto(address)
            tab.wait_for_selector("body[data-ready]", state="attached")
            tab.evaluate(f"window.scrollTo(0, {top})")
            tab.wait_for_timeout(800)
            save(tab.screenshot(), name)
            tab.close()
        browser.close()


if __name__ == "__main__":
    main()
