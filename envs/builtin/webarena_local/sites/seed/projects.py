"""The forge in words: projects with their components, milestones, tickets and commits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Project:
    """One project of the forge."""

    name: str
    about: str
    language: str
    """The suffix of its source files."""
    components: tuple[str, ...]
    milestones: tuple[str, ...]
    """The first is done."""
    tickets: tuple[str, ...]
    """The summaries of tickets, oldest first."""


PROJECTS = (
    Project(
        "kelp",
        "A static site generator that reads plain folders",
        "py",
        ("parser", "templates", "server", "docs"),
        ("0.9", "1.0", "1.1"),
        (
            "Footnotes are numbered twice",
            "Serve pages with the right charset",
            "Add a table of contents",
            "Templates cannot include themselves",
            "Crash on an empty folder",
            "Document the front matter",
            "Live reload stops after an hour",
            "Support Markdown tables",
            "Sitemap has wrong dates",
            "Slow build with 5000 pages",
            "Broken links are not reported",
            "Dark theme for code blocks",
            "Feed contains drafts",
            "Windows paths in image links",
            "Allow more than one author",
            "Search index is too large",
            "Titles with colons break the parser",
            "Describe how to deploy by rsync",
        ),
    ),
    Project(
        "tidewatch",
        "Reads water gauges and warns before floods",
        "c",
        ("sensor", "alerts", "storage", "dashboard"),
        ("2.3", "2.4", "3.0"),
        (
            "Gauge readings jump at midnight",
            "Alert is sent twice",
            "Store readings as integers",
            "Dashboard shows UTC only",
            "Lost readings after a reboot",
            "Calibrate the pressure sensor",
            "Silence alerts during maintenance",
            "Graph of the last 30 days",
            "Battery level is not logged",
            "Time-out when the modem sleeps",
            "Export readings as CSV",
            "Negative water level in summer",
            "Threshold per station",
            "Memory leak in the collector",
            "Colour blind friendly palette",
            "Send a test alert every month",
            "Retry uploads with back-off",
            "Readme for the field kit",
        ),
    ),
    Project(
        "lantern-ui",
        "Interface components for small screens",
        "js",
        ("buttons", "forms", "charts", "build"),
        ("4.0", "4.1", "5.0"),
        (
            "Focus ring is cut off",
            "Date field accepts 31 February",
            "Legend overlaps the chart",
            "Tree shaking drops the icons",
            "Button text wraps too early",
            "Add a toggle switch",
            "Slider jumps on touch",
            "Error text is not announced",
            "Bar chart with negative values",
            "Build fails without a lock file",
            "Keyboard trap in the dialog",
            "Right-to-left layout for forms",
            "Smaller bundle for the core",
            "Tooltip stays after a click",
            "Password field: show and hide",
            "Contrast of disabled buttons",
            "Migrate the examples",
            "Publish type definitions",
        ),
    ),
    Project(
        "cartographer",
        "Draws walking maps from open data",
        "rs",
        ("tiles", "routing", "labels", "import"),
        ("1.4", "1.5", "2.0"),
        (
            "Labels collide at zoom 14",
            "Ferry routes are ignored",
            "Import stops at broken relations",
            "Contour lines every 20 m",
            "Tile cache grows without limit",
            "Steps are routed like paths",
            "Bridge drawn below the river",
            "Names in two languages",
            "Import only a bounding box",
            "Panic on an empty way",
            "Print maps as A3",
            "Prefer marked trails",
            "Hill shading is too dark",
            "Wrong colour for swamps",
            "Route around closed paths",
            "Font for Cyrillic names",
            "Progress bar for long imports",
            "Speed up the label index",
        ),
    ),
)

DETAILS = (
    "Seen on two machines, on the newest release and on the one before.",
    "Steps: take the example project, follow the first page of the manual, wait.",
    "A user wrote to us about this; the log is with the maintainers.",
    "Not urgent, but it comes up in every second mail.",
)
COMMENTS = (
    "I can reproduce it.",
    "A fix is on its way, it needs tests.",
    "Is this still so on the development branch?",
    "Let us talk about it at the next meeting.",
    "The cause is older than this release.",
    "Done as far as I am concerned; please try.",
)
COMMIT_VERBS = ("Fix", "Rework", "Test", "Document", "Simplify", "Speed up")
