"""The tasks of MiniWoB++ that an accessibility tree can represent.

Omitted are tasks with drawings (shapes, colours, charts), with dragging or with time, and those whose
controls have no name (the icons of the inbox and of social media).
"""

_TASKS = """
    book-flight book-flight-nodelay buy-ticket choose-date choose-date-easy choose-date-medium
    choose-date-nodelay choose-list click-button click-button-sequence click-checkboxes
    click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer click-collapsible
    click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-dialog
    click-dialog-2 click-link click-menu click-menu-2 click-option click-tab click-tab-2
    click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test click-test-2 click-test-transfer
    copy-paste copy-paste-2 enter-date enter-password enter-text enter-text-2 enter-text-dynamic
    enter-time find-word focus-text focus-text-2 form-sequence-2 form-sequence-3 generate-number
    guess-number login-user login-user-popup multi-layouts multi-orderings navigate-tree order-food
    phone-book read-table read-table-2 scroll-text search-engine sign-agreement simple-algebra
    simple-arithmetic unicode-test use-autocomplete use-autocomplete-nodelay use-spinner
    """
TASKS = tuple(_TASKS.split())
"""The tasks in the order of their numbers: item N is task N % 65 with seed N // 65."""
SEEDS = 2**31
"""Seeds of each task; JavaScript would round numbers from 2**53 on."""
