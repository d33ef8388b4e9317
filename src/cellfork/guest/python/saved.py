"""Images that code saves to a file are displayed as well, where the sandbox asks for it: E2B's image does so.

By default they are not: a file that code made is told as an artifact, and what is shown *and* saved would be there twice.
"""

import functools
import os
from typing import Any

VARIABLE = "CELLFORK_DISPLAY_SAVED_IMAGES"
"""Set to ``1`` in the sandbox's environment to have saved images displayed."""


def display_saved_images() -> None:
    """Let Pillow display an image that is saved under a name, once it is saved; nothing where nobody asked for it.

    matplotlib saves figures through Pillow, so these count.
    """
    if os.environ.get(VARIABLE) != "1":
        return
    try:
        from PIL import Image
    except ImportError:
        return
    save = Image.Image.save

    @functools.wraps(save)
    def save_and_display(image: Any, fp: Any, *arguments: Any, **options: Any) -> None:
        from IPython.display import display

        save(image, fp, *arguments, **options)
        if isinstance(fp, str):
            display(image)

    Image.Image.save = save_and_display
