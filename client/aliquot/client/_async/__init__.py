"""The SDK for asyncio, and the source of the one for threads: `make sync` writes `_sync` from these modules.

Not generated, because threads and tasks differ there: `seam` and `leasing`.
"""
