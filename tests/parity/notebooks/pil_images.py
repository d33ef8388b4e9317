# Drawing, filtering and saving pictures.

# %% a drawing
from PIL import Image, ImageDraw, ImageFilter, ImageOps

picture = Image.new("RGB", (120, 80), "white")
pen = ImageDraw.Draw(picture)
pen.ellipse((20, 10, 100, 70), fill="tomato", outline="black", width=3)
pen.line((0, 0, 119, 79), fill="navy", width=2)
picture

# %% display, then text, then display
display(picture.rotate(90, expand=True))
print("rotated", picture.size)
display(picture.filter(ImageFilter.GaussianBlur(2)))

# %% several objects at once
display(picture.resize((30, 20)), "a string", 42)

# %% other modes
display(picture.convert("L"), picture.convert("1"), picture.convert("P"), picture.convert("RGBA"))

# %% a mode that PNG cannot hold
picture.convert("CMYK")

# %% save in several formats
import os

for name in ("a.png", "a.jpg", "a.gif", "a.bmp"):
    picture.save(name)
    print(name, Image.open(name).format, Image.open(name).size)
sorted(name for name in os.listdir() if name.startswith("a."))

# %% a JPEG from a file shows as what it is
Image.open("a.jpg")

# %% IPython's own Image, from file and from bytes
from IPython.display import Image as Shown

display(Shown("a.png", width=60))
display(Shown(data=open("a.jpg", "rb").read(), format="jpeg"))
Shown("a.gif")

# %% from an array and back
import numpy as np

gradient = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (16, 1))
array = np.asarray(ImageOps.invert(Image.fromarray(gradient)))
print(array.shape, array.dtype, array[0, :5])
Image.fromarray(gradient)

# %% in memory
import io

buffer = io.BytesIO()
picture.save(buffer, "PNG")
buffer.seek(0)
again = Image.open(buffer)
again.load()
again.info, again.getpixel((60, 40)), again == picture

# %% show() in a place without a display
histogram = picture.convert("L").histogram()
sum(histogram), histogram[255]

# %% contact sheet
sheet = Image.new("RGB", (4 * 32, 32))
for i in range(4):
    sheet.paste(picture.resize((32, 32)).rotate(90 * i), (32 * i, 0))
sheet

# %% a list of images is only text
[sheet.size, Image.new("1", (1, 1)).mode]

# %% no such file
Image.open("missing.png")

# %% not an image
open("broken.png", "w").write("no image")
Image.open("broken.png")
