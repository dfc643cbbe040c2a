"""A lease that says on which port its program serves: how to get there from one's own machine."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.page.conftest import TIMEOUT_MS, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)


async def test_the_port_of_a_notebook_is_reached_by_a_line_and_a_link(visitor: Visitor) -> None:
    site = visitor.site
    lease = site.ask(name="notebook", labels={"port": "8888"})
    try:
        page = await visitor.sign_in(site.admin_token, f"/lease?id={lease['lease_id']}")
        line = page.get_by_role("region", name="To reach its port 8888")
        await expect(line).to_contain_text("ssh -L 8888:127.0.0.1:8888 ")
        with site.rest() as http:
            node = http.get(f"/leases/{lease['lease_id']}").json()["slices"][0]["node_name"]
        assert (await line.inner_text()).split()[-1] == node
        link = page.get_by_role("link", name="http://127.0.0.1:8888")
        await expect(link).to_have_attribute("href", "http://127.0.0.1:8888")
        await expect(link).to_have_attribute("rel", "noopener noreferrer")
    finally:
        site.release(lease["lease_id"])


@pytest.mark.parametrize("port", ["none", "0", "65536", "80.5", ""])
async def test_what_is_no_port_is_but_a_label(visitor: Visitor, port: str) -> None:
    site = visitor.site
    lease = site.ask(name="no notebook", labels={"port": port})
    try:
        page = await visitor.sign_in(site.admin_token, f"/lease?id={lease['lease_id']}")
        await expect(page.get_by_role("region", name="command line").first).to_contain_text("aliquot exec")
        await expect(page.locator("main")).not_to_contain_text("ssh -L")
    finally:
        site.release(lease["lease_id"])
