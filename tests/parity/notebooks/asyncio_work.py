# Concurrent code in a notebook: no loop to start, it is there.

# %% top-level await
import asyncio

await asyncio.sleep(0.01)
print("slept")
await asyncio.sleep(0, result="value of an await")

# %% gather
async def work(name, delay):
    await asyncio.sleep(delay)
    print("done", name)
    return name.upper()


await asyncio.gather(work("b", 0.04), work("a", 0.01), work("c", 0.08))

# %% a coroutine that nobody awaits is only shown
coroutine = work("x", 0)
print(type(coroutine).__name__)
coroutine.close()

# %% async for and async with
class Countdown:
    def __init__(self, start):
        self.start = start

    async def __aenter__(self):
        print("enter")
        return self

    async def __aexit__(self, *exc):
        print("exit", exc[0])

    async def __aiter__(self):
        for i in range(self.start, 0, -1):
            await asyncio.sleep(0)
            yield i


async with Countdown(3) as countdown:
    async for i in countdown:
        print(i, end=" ")

# %% async comprehension
[i * i async for i in Countdown(3)]

# %% a task that goes on between cells
progress = []


async def ticker():
    for i in range(5):
        progress.append(i)
        await asyncio.sleep(0.01)
    return "ticked"


task = asyncio.create_task(ticker())
task.done()

# %% blocking does not move it, awaiting does
await asyncio.sleep(0.15)
progress, task.done()

# %% its result
await task

# %% asyncio.run has no place here
main = work("main", 0)
try:
    asyncio.run(main)
finally:
    main.close()

# %% nor has run_until_complete
loop = asyncio.get_event_loop()
waiting = work("again", 0)
try:
    loop.run_until_complete(waiting)
except RuntimeError as error:
    print(type(error).__name__, error)
finally:
    waiting.close()

# %% the running loop
asyncio.get_running_loop().is_running()

# %% an exception in a task
async def fail():
    await asyncio.sleep(0)
    raise ValueError("inside a task")


await asyncio.create_task(fail())

# %% gather with exceptions
results = await asyncio.gather(fail(), work("fine", 0), return_exceptions=True)
[type(r).__name__ for r in results]

# %% timeout
try:
    async with asyncio.timeout(0.02):
        await asyncio.sleep(10)
except TimeoutError as error:
    print("timed out", repr(error))

# %% wait_for raises
await asyncio.wait_for(asyncio.sleep(10), 0.02)

# %% cancelling
task = asyncio.create_task(asyncio.sleep(10))
await asyncio.sleep(0)
task.cancel()
await task

# %% queue between producer and consumer
queue = asyncio.Queue()


async def produce():
    for i in range(3):
        await queue.put(i)
    await queue.put(None)


async def consume():
    seen = []
    while (item := await queue.get()) is not None:
        seen.append(item)
    return seen


async with asyncio.TaskGroup() as group:
    group.create_task(produce())
    consumer = group.create_task(consume())
consumer.result()

# %% a task group with failures
async with asyncio.TaskGroup() as group:
    group.create_task(fail())

# %% threads from async code
import threading

names = await asyncio.to_thread(lambda: threading.current_thread() is threading.main_thread())
names

# %% a child process
process = await asyncio.create_subprocess_exec("echo", "from a child", stdout=asyncio.subprocess.PIPE)
out, _ = await process.communicate()
out, process.returncode

# %% the shared context of cells
import contextvars

setting = contextvars.ContextVar("setting", default="default")
setting.set("changed")
await asyncio.sleep(0)
setting.get()

# %% is it there in the next cell
print(setting.get())

# %% await in a wrong place
def plain():
    await asyncio.sleep(0)

# %% events
event = asyncio.Event()
loop = asyncio.get_running_loop()
loop.call_later(0.01, event.set)
await event.wait()

# %% a task that prints later
async def later():
    for i in range(2):
        await asyncio.sleep(0.02)
        print("tick", i)


printing = asyncio.create_task(later())

# %% prints into the cell that runs then
await printing
print("here")
