"""The form that the page makes of a model's schema, in a real browser: fields and lists, CSV, and what it refuses."""

import hashlib

import pytest
from playwright.sync_api import expect

from tests.service.people import ROW

from .conftest import violations

OTHER = ROW | {"age": 20, "city": None, "note": None}


@pytest.fixture(scope="module")
def service(start_for_module, by_columns):
    return start_for_module(by_columns)


@pytest.fixture
def key(service, request):
    return service.add_client("c" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12])


def fill(page):
    page.get_by_role("textbox", name="age", exact=True).fill("39")
    page.get_by_role("combobox", name="city").select_option("Oslo")
    page.get_by_role("combobox", name="member").select_option("true")
    page.get_by_label("since", exact=True).fill("2011-05-06")
    page.get_by_role("textbox", name="note").fill("came twice")


def price(page):
    """Ask for the price, and return what is asked."""
    with page.expect_request("**/predict?dry_run=true") as asked:
        page.get_by_role("button", name="See the price").click()
    expect(page.locator("#quote")).to_be_visible()
    return asked.value.post_data_json["instances"]


def test_an_example_or_a_row_is_filled_in_priced_and_answered(service, tab, key):
    page = tab.sign_in(service.url, key)
    page.get_by_role("button", name="Fill in an example").click()
    example = {"age": 50, "city": "Oslo", "member": True, "since": "2000-01-01", "note": "text"}
    assert price(page) == [example]
    page.get_by_role("radio", name="Paste").check()
    page.get_by_role("button", name="Fill in an example").click()
    assert price(page) == [example]
    page.locator("input[name=input]").first.check()
    assert page.get_by_role("combobox", name="city").locator("option").all_inner_texts() == ["Missing", "Oslo", "Lima"]
    assert page.get_by_role("combobox", name="member").locator("option").all_inner_texts()[0] == "Choose one"
    assert page.get_by_label("since", exact=True).get_attribute("type") == "date"
    fill(page)
    assert price(page) == [ROW]
    page.locator("#pay").click()
    expect(page.locator("#answers")).to_be_visible()
    again = service.http(key).post("/predict", json={"instances": [ROW]}).json()
    assert again["receipt"]["charged_rows"] == 0
    for width, scheme in ((1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert violations(page) == []
        tab.shot(f"form-{width}-{scheme}")


WRONG = {
    "age": {
        "": "age is empty; it must be a number from 0 to 100.",
        "101": "age is 101; it must be a number from 0 to 100.",
        "old": "age is old; it must be a number from 0 to 100.",
    },
    "member": {"": "member is empty; it must be true or false."},
    "since": {"1999-12-31": "since is incomplete"},
}


def test_what_does_not_fit_is_never_sent_and_what_may_be_missing_is_left_empty(service, tab, key):
    page = tab.sign_in(service.url, key)
    for label, values in WRONG.items():
        for value, said in values.items():
            fill(page)
            field = page.get_by_label(label, exact=True)
            if label == "member":
                field.select_option(value)
            else:
                field.fill(value)
            page.get_by_role("button", name="See the price").click()
            expect(page.locator("#rows-error")).to_contain_text(said)
            expect(field).to_be_focused()
            expect(field).to_have_attribute("aria-invalid", "true")
    assert violations(page) == []
    assert not [url for _, url, _ in tab.asked if "predict" in url]
    fill(page)
    page.get_by_role("combobox", name="city").select_option("Missing")
    page.get_by_role("textbox", name="note").fill("")
    assert price(page) == [ROW | {"city": None, "note": None}]


def test_a_csv_file_has_the_columns_by_name(service, tab, key, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('note,member,id,since,city,age\n"came twice",TRUE,7,2011-05-06,Oslo,39\n,1,8,2011-05-06,,20\n')
    page = tab.sign_in(service.url, key)
    page.get_by_role("radio", name="CSV file").check()
    page.locator("#csv").set_input_files(file)
    assert price(page) == [ROW, OTHER]
    expect(page.locator("#csv-note")).to_have_text("rows.csv: 2 rows. Columns left out: id.")
    page.locator("#pay").click()
    expect(page.locator("#answers tbody tr")).to_have_count(2)
    file.write_text("note,member,since,city,age\nx,1,2011-05-06,Rome,20\n")
    page.locator("#csv").set_input_files(file)
    page.get_by_role("button", name="See the price").click()
    expect(page.locator("#rows-error")).to_have_text("Line 2, city is Rome; it must be one of Oslo, Lima.")


def test_the_form_is_filled_in_from_the_keyboard(service, tab, key):
    page = tab.sign_in(service.url, key)
    page.get_by_role("textbox", name="age", exact=True).focus()
    page.keyboard.type("39")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.type("05062011")
    page.get_by_role("textbox", name="note").focus()
    page.keyboard.type("came twice")
    page.keyboard.press("Enter")
    expect(page.locator("#quote")).to_be_visible()
    page.locator("#pay").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#paid")).to_contain_text("for new rows1")
    again = service.http(key).post("/predict", json={"instances": [ROW]}).json()
    assert again["receipt"]["charged_rows"] == 0
