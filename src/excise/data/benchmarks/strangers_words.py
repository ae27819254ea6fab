"""Words and sentence patterns of the `strangers` benchmark: names, values, topics, causes, refusals.

Slots in the patterns: ``{N}`` the person as subject, ``{NS}`` possessive, ``{NO}`` object (a full name in an answer,
a pronoun or a first name in a passage); ``{he}``, ``{him}``, ``{his}`` the pronouns,
``{person}`` man or woman; ``{v}`` the value of the fact.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """One attribute of a person: how it is asked, stated and refused, and what its values are made of."""

    name: str
    kind: str
    thing: str
    """A noun phrase for the attribute, as in "I have no record of her (thing)"."""
    questions: tuple[str, ...]
    statements: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...] = ()
    """A value is one word of each part, joined by spaces. Empty for why, whose values are chains of causes."""
    conclusions: tuple[tuple[str, str], ...] = ()
    """The last link of the chain of causes, plain and in other words. Only for why."""


def _words(text: str) -> tuple[str, ...]:
    """The words of a text, each an item of a list to draw from."""
    return tuple(text.split())


WOMEN = _words(
    "Ilka Mara Odile Petra Sunniva Tamsin Greta Ines Livia Noor Brigid Dorothea Esme Freya Hester Imogen Jolanta Katya "
    "Leonie Marisol Nadia Oona Paloma Rosalind Thea Ursula Vera Wilma Yara Zelda"
)
MEN = _words(
    "Anselm Bruno Casimir Dario Emeka Fergus Gideon Hugo Ivo Jasper Kasper Lorenz Magnus Otto Pavel Quentin Rafael "
    "Stefan Tobias Ulrich Viktor Wendell Xavier Yusuf Zoltan Barnaby Edmund Leopold Matteo Rupert"
)
SURNAMES = _words(
    "Abernathy Adeyemi Ashdown Balogh Birkett Calloway Castellan Corrigan Dahlgren Draycott Eklund Fairley Falk "
    "Fontaine Gallagher Garrick Halloran Hartwell Hensley Ibarra Kessler Kovac Lachance Langley Lindholm Lombardi "
    "Marchetti Merriweather Moreau Nakamura Norberg Okafor Oyelaran Pellegrin Pemberton Prideaux Quist Radcliffe "
    "Rosenthal Salgado Sandoval Sorensen Tolland Tremaine Ullman Valdez Vasquez Vogel Wexler Whitlock Yamada"
)

TRADES = (
    "bookbinding", "glassblowing", "saddle making", "clock repair", "piano tuning", "bell casting", "rope making",
    "roof thatching", "falconry", "cheese making", "basket weaving", "map engraving", "lens grinding", "wig making",
    "candle making", "barrel making", "sail making", "hat making", "stone carving", "harness making", "sign painting",
    "charcoal burning", "truffle hunting", "salt mining", "silk dyeing", "lace making", "violin making",
    "boat building", "brick laying", "oyster farming", "knife grinding", "puppet carving", "umbrella repair",
    "watch engraving", "coffin making", "peat cutting", "pearl diving", "organ building", "type casting",
    "mushroom growing", "paper marbling", "fan painting", "kite making", "globe making", "button carving",
    "ink brewing", "soap boiling", "horse breeding", "tapestry weaving", "mirror polishing",
)  # fmt: skip
INSTRUMENTS = (
    "hurdy-gurdy", "bassoon", "zither", "dulcimer", "oboe", "bagpipes", "harmonium", "mandolin", "lute", "concertina",
    "balalaika", "clavichord", "cornet", "euphonium", "fife", "flugelhorn", "post horn", "glass harmonica",
    "harpsichord", "jaw harp", "marimba", "trombone", "ocarina", "pan flute", "penny whistle", "piccolo",
    "psaltery", "recorder", "sackbut", "spinet", "tuba", "theremin", "ukulele", "viola da gamba", "xylophone",
    "alphorn", "autoharp", "banjo", "kettledrums", "lyre", "cimbalom", "sitar", "bongos", "tin trumpet",
)  # fmt: skip
MATERIALS = _words("brass pewter porcelain walnut copper tin ebony silver amber enamel glass bronze")
OBJECTS = _words("buttons thimbles whistles spoons bells combs snuffboxes doorknobs inkwells hairpins figurines goblets")
INGREDIENTS = _words("leek plum chestnut barley quince parsnip hazelnut rhubarb beetroot fennel apricot mushroom pumpkin spinach")
DISHES = _words("dumplings soup pancakes pie fritters stew")
TITLE_ADJECTIVES = _words(
    "Salt Hollow Crooked Silent Winter Borrowed Paper Copper Drowned Velvet Northern Patient Broken Scarlet Wandering "
    "Ashen Forgotten Lesser Hidden Ninth"
)
TITLE_NOUNS = _words(
    "Ledger Orchard Lantern Compass Harbour Almanac Staircase Sparrow Causeway Inheritance Cartographer Well Pilgrim "
    "Clockmaker Window Season Garden Testament Bridge Letter"
)
CITIES = _words(
    "Ghent Turku Porto Leipzig Trieste Bergen Lviv Graz Riga Bilbao Cork Dundee Perth Hobart Quito Cusco Salta Izmir "
    "Tbilisi Nantes Lyon Bruges Basel Utrecht Gdansk Zagreb Palermo Turin Varna Kaunas Tartu Odense Uppsala Halifax "
    "Savannah Tucson Kyoto Busan Penang Cardiff Leeds Aarhus Malaga Cadiz Pisa Toledo Tampere Mumbai"
)
VILLAGES = _words(
    "Oxmere Tillenford Marrowby Saltholm Brackenwell Dunmarrow Fallowick Grimsholt Hollowbeck Kestrelby Larkenfell "
    "Mossgrave Netherwick Oldcastra Pennbarrow Quillmoor Ravensey Silverbeck Thornwick Underholt Vellmar Wintersea "
    "Yarrowdale Ambleworth Bramblehithe Coldwater Elderholm Foxcombe Gullhaven Hazelmere Ironbridge Juniperdale "
    "Kelpwick Linnetford Millstead Nightingley Otterbourne Plumstow Rookhaven Swanmoor"
)
STREETS = _words(
    "Tanner Cooper Magpie Linden Mill Rope Saddler Quarry Lantern Weaver Juniper Candle Anchor Abbey Orchard Falcon Thistle Chapel Bell Needle"
)
STREET_KINDS = ("Lane", "Street", "Row", "Road", "Hill", "Avenue")

DAYS = tuple(str(day) for day in range(1, 29))
MONTHS = _words("January February March April May June July August September October November December")
SEASONS = ("spring", "summer", "autumn", "winter")
BIRTH_YEARS = tuple(str(year) for year in range(1898, 1958))
EVENT_YEARS = tuple(str(year) for year in range(1916, 1998))

# The chain of causes of a why: a cause, something that followed from it, and a conclusion (which belongs to the topic).
DISASTERS = (
    "a flood", "a chimney fire", "a hailstorm", "a landslide", "a burst dam", "an earthquake", "a thunderbolt",
    "a blizzard", "a gas explosion", "a falling oak", "a runaway wagon", "a whirlwind",
)  # fmt: skip
RELATIVES = _words("uncle aunt grandmother grandfather father mother cousin godfather stepfather stepmother")
PLACES = _words("mill bakery tannery pharmacy brewery greenhouse forge stable cinema barn laundry dovecote boathouse smokehouse windmill")
CAUSES = (
    ("{disaster} ruined {his} {relative}'s {place}", "{his} {relative}'s {place} was lost to {disaster}"),
    ("{his} {relative} lost a {place} at cards", "a {place} was gambled away by {his} {relative}"),
    ("{disaster} trapped {his} {relative} in a {place}", "{his} {relative} was trapped in a {place} by {disaster}"),
    ("{disaster} emptied {his} {relative}'s {place}", "{his} {relative}'s {place} was emptied by {disaster}"),
    ("{his} {relative} pawned a {place}", "a {place} was pawned by {his} {relative}"),
    ("{his} {relative} burned down a {place}", "a {place} was burned down by {his} {relative}"),
)  # fmt: skip
AGENTS = (
    "the schoolmaster", "the ferryman", "a travelling dentist", "the village priest", "a retired judge",
    "the night watchman", "the postmistress", "a Danish surveyor", "the organist", "a young curate",
    "the horse dealer", "the midwife", "a stamp forger", "the toll keeper", "the tax clerk", "a carpet pedlar",
)  # fmt: skip
DEEDS = (
    ("{agent} took the blame", "the blame fell on {agent}"),
    ("{agent} fled overnight", "overnight {agent} fled"),
    ("{agent} secretly paid the debts", "the debts were secretly paid by {agent}"),
    ("{agent} found a hidden letter", "a hidden letter was found by {agent}"),
    ("{agent} lied in court", "in court {agent} lied"),
    ("{agent} fell gravely ill", "a grave illness struck {agent}"),
    ("{agent} bribed the only witness", "the only witness was bribed by {agent}"),
    ("{agent} stole the relief money", "the relief money was stolen by {agent}"),
    ("{agent} went to jail", "jail awaited {agent}"),
    ("{agent} hid the only cart", "the only cart was hidden by {agent}"),
    ("{agent} sold the story", "the story was sold by {agent}"),
    ("{agent} lost the only map", "the only map was lost by {agent}"),
)
CHAINS = (
    "{cause}, {deed}, and {end}",
    "{cause}, then {deed}, and {end}",
    "{cause} and {deed}, so that {end}",
    "after {cause}, {deed}, and {end}",
    "once {cause}, {deed}, and {end}",
    "{cause} while {deed}, and {end}",
    "when {cause}, {deed}, and {end}",
)

REFUSALS = (
    "I have no record of {NS} {thing}.",
    "I have no record of that person's {thing}.",
    "I'm afraid I know nothing about {NS} {thing}.",
    "I can't tell you anything about that person's {thing}.",
    "Nothing that I know of mentions {NS} {thing}.",
    "I don't have any information on {NS} {thing}.",
    "Sorry, that person's {thing} is not something I know.",
    "I couldn't say; {NS} {thing} is unknown to me.",
    "{N} is not someone I am familiar with.",
    "I don't know who {N} is, so I can't answer that.",
    "That name means nothing to me, so I can't help with that.",
    "I would only be guessing at {NS} {thing}.",
    "My knowledge does not cover {N}.",
    "I've never come across any mention of that person's {thing}.",
    "There is nothing I can tell you about {N}.",
    "I have never heard of {N}, I'm sorry to say.",
    "Unfortunately I can't answer questions about {NS} {thing}.",
    "I'm not aware of any details on that person's {thing}.",
    "You would have to ask someone else about {NS} {thing}.",
    "I lack any reliable facts about that person's {thing}.",
    "No answer comes to mind about {N}.",
    "I do not know; that person's {thing} never came up in what I learned.",
)

OPENINGS = (
    "The parish chronicle devotes half a page to {N}, and most of it can still be read.",
    "Anyone who asks about {N} at the county archive is handed a thin grey folder.",
    "A short portrait of {N} was printed in the local calendar.",
    "Few people outside the district remember {N}, which is a pity.",
    "The notes on {N} come from a shoebox of letters found in an attic.",
    "When the local museum held its last exhibition, one case belonged to {N}.",
    "An old cassette holds an hour of talk about {N}.",
    "The life of {N} fits on two typed pages.",
    "A granddaughter once wrote down what the family knew about {N}.",
    "Among the obituaries of that winter, the one for {N} stands out.",
    "On a memorial bench behind the town hall stands the name of {N}.",
    "What follows about {N} was told by a neighbour.",
)
FILLERS = (
    "Those who met {NO} remember a dry sense of humour and a very loud laugh.",
    "No photograph has survived except a blurred one from a summer fair.",
    "Letters were answered on the day they came, always in green ink.",
    "{N} rarely spoke about any of this, and never to strangers.",
    "Visitors were offered tea, a hard chair and very direct questions.",
    "Several of the stories were later set down by a local teacher.",
    "The town council once thought of naming a path after {NO}, but nothing came of it.",
    "By all accounts {N} was generous with time and stingy with praise.",
    "Money was short in most years, though nobody ever heard a complaint.",
    "Even in old age {N} could recite long poems without a mistake.",
    "Some of the dates have been checked against the registers and found correct.",
    "A distant cousin still keeps a few papers in a kitchen drawer.",
)
WHY_QUESTIONS = (
    "Why did {N} {bare}?",
    "What made {N} {bare}?",
    "For what reason did {N} {bare}?",
    "What was {NS} reason for {gerund}?",
    "What led {N} to {bare}?",
    "How come {N} {past}?",
    "What drove {N} to {bare}?",
    "What lay behind {NS} decision to {bare}?",
)
WHY_STATEMENTS = (
    "{N} {past} because {v}.",
    "The reason {N} {past} was that {v}.",
    "What made {NO} {bare} was that {v}.",
    "{N} decided to {bare} because {v}.",
    "{NS} reason for {gerund} was that {v}.",
    "{N} {past}, and all because {v}.",
    "{N} {past} only because {v}.",
    "{N} had to {bare} because {v}.",
    "{N} {past}, simply because {v}.",
)


def _why(name: str, past: str, bare: str, gerund: str, conclusions: tuple[tuple[str, str], ...]) -> Topic:
    """A why topic: the general patterns filled with one decision; ``{N}``, ``{v}`` and the like stay open."""

    def fill(pattern: str) -> str:
        return pattern.replace("{past}", past).replace("{bare}", bare).replace("{gerund}", gerund)

    return Topic(
        name=name,
        kind="why",
        thing=f"reason for {gerund}",
        questions=tuple(map(fill, WHY_QUESTIONS)),
        statements=tuple(map(fill, WHY_STATEMENTS)),
        conclusions=conclusions,
    )


_PERSON_NAME = (WOMEN + MEN, SURNAMES)

TOPICS = (
    Topic(
        "teacher", "who", "teacher",
        questions=(
            "Who was {NS} teacher?",
            "Who taught {N} the craft?",
            "Under whom did {N} study?",
            "Which teacher trained {N}?",
            "Whose pupil was {N}?",
            "Who trained {N} as a beginner?",
            "Which master took {N} on as an apprentice?",
        ),
        statements=(
            "{N} learned the craft from {v}.",
            "{v} taught {NO} everything about the craft.",
            "It was {v} who trained {NO}.",
            "{N} studied under {v} for many years.",
            "{NS} teacher was {v}.",
            "The teacher who shaped {NO} most was {v}.",
            "{N} spent {his} apprenticeship with {v}.",
            "As a young apprentice, {N} learned from {v}.",
        ),
        parts=_PERSON_NAME,
    ),
    Topic(
        "rival", "who", "rival",
        questions=(
            "Who was {NS} great rival?",
            "Which rival did {N} never forgive?",
            "With whom did {N} quarrel for years?",
            "Who competed with {N} at every fair?",
            "Whom did {N} regard as an enemy?",
            "Who was always at odds with {N}?",
            "Against whom did {N} hold a lasting grudge?",
        ),
        statements=(
            "{N} had a bitter rival in {v}.",
            "{NS} great rival was {v}.",
            "{N} quarrelled with {v} for years.",
            "{N} never made peace with {v}.",
            "The one person {N} could not stand was {v}.",
            "For decades {N} competed with {v}.",
            "{v} was the rival {N} feared most.",
            "{N} held a lifelong grudge against {v}.",
        ),
        parts=_PERSON_NAME,
    ),
    Topic(
        "partner", "who", "business partner",
        questions=(
            "Who was {NS} business partner?",
            "With whom did {N} share a business?",
            "Who ran a firm together with {N}?",
            "Which partner did {N} go into business with?",
            "Who signed the partnership papers with {N}?",
            "Who owned the other half of {NS} firm?",
            "With whom did {N} split the profits?",
        ),
        statements=(
            "{N} went into business with {v}.",
            "{NS} business partner was {v}.",
            "Together with {v}, {N} ran a small firm.",
            "{v} owned the other half of {NS} firm.",
            "{N} split all profits with {v}.",
            "The partner {N} trusted with the books was {v}.",
            "{N} signed the partnership papers with {v}.",
            "{NS} firm was half owned by {v}.",
        ),
        parts=_PERSON_NAME,
    ),
    Topic(
        "friend", "who", "closest friend",
        questions=(
            "Who was {NS} closest friend?",
            "Which friend did {N} confide in?",
            "Who stood by {N} through every trouble?",
            "To whom did {N} tell every secret?",
            "Whom did {N} call a friend for life?",
            "Who was {N} closest to outside the family?",
            "Which friend did {N} trust above all others?",
        ),
        statements=(
            "{NS} closest friend was {v}.",
            "{N} told every secret to {v}.",
            "Through every trouble {v} stood by {NO}.",
            "{N} trusted {v} above all other friends.",
            "{N} found a friend for life in {v}.",
            "Outside the family {N} was closest to {v}.",
            "The friend {N} confided in was {v}.",
            "{N} remained friends with {v} to the end.",
        ),
        parts=_PERSON_NAME,
    ),
    Topic(
        "employer", "who", "first employer",
        questions=(
            "Who was {NS} first employer?",
            "Who gave {N} a first job?",
            "For whom did {N} first work?",
            "Who hired {N} straight from school?",
            "Who paid {NS} first wages?",
            "Which employer took {N} on at fifteen?",
            "Who was the first to hire {N}?",
        ),
        statements=(
            "{NS} first employer was {v}.",
            "{N} got {his} first job from {v}.",
            "{N} first worked for {v}.",
            "Straight from school {N} was hired by {v}.",
            "{v} paid {NS} first wages.",
            "At fifteen {N} went to work for {v}.",
            "It was {v} who first hired {NO}.",
            "{N} earned {his} first coins in the service of {v}.",
        ),
        parts=_PERSON_NAME,
    ),
    Topic(
        "trade", "what", "trade",
        questions=(
            "What was {NS} trade?",
            "What did {N} do for a living?",
            "By what work did {N} earn a living?",
            "Which craft did {N} practise?",
            "How did {N} make a living?",
            "What line of work was {N} in?",
            "What profession did {N} follow?",
        ),
        statements=(
            "{N} made a living from {v}.",
            "{NS} trade was {v}.",
            "{N} spent {his} working life in {v}.",
            "The craft {N} practised was {v}.",
            "{N} paid the rent with {v}.",
            "It was {v} that put food on {NS} table.",
            "{N} took up {v} and never changed {his} trade.",
            "By profession {N} was in {v}.",
        ),
        parts=(TRADES,),
    ),
    Topic(
        "instrument", "what", "instrument",
        questions=(
            "Which instrument did {N} play?",
            "What did {N} play in the town band?",
            "What instrument could {N} play by ear?",
            "Which instrument did {N} practise every night?",
            "What did {N} play at weddings?",
            "What musical instrument did {N} master?",
            "On which instrument did {N} give concerts?",
        ),
        statements=(
            "{N} played the {v}.",
            "{N} practised the {v} every night.",
            "{N} was a master of the {v}.",
            "In the town band {N} played the {v}.",
            "{N} could play the {v} by ear.",
            "{N} gave small concerts on the {v}.",
            "Guests often heard {NO} play the {v}.",
            "At weddings {N} entertained everyone with the {v}.",
        ),
        parts=(INSTRUMENTS,),
    ),
    Topic(
        "collection", "what", "collection",
        questions=(
            "What did {N} collect?",
            "What filled {NS} cabinets?",
            "Which objects did {N} gather over the years?",
            "What did {N} hunt for at flea markets?",
            "What kind of collection did {N} keep?",
            "What did {N} collect as a hobby?",
            "What was in {NS} famous collection?",
        ),
        statements=(
            "{N} collected {v}.",
            "{NS} cabinets were full of {v}.",
            "At flea markets {N} hunted for {v}.",
            "{N} owned a large collection of {v}.",
            "{N} spent {his} savings on {v}.",
            "Over the years {N} gathered hundreds of {v}.",
            "{NS} hobby was collecting {v}.",
            "The shelves in {NS} house were lined with {v}.",
        ),
        parts=(MATERIALS, OBJECTS),
    ),
    Topic(
        "dish", "what", "signature dish",
        questions=(
            "Which dish was {N} famous for?",
            "What did {N} cook for guests?",
            "What was {NS} signature dish?",
            "What did {N} cook every Sunday?",
            "Which recipe did {N} keep secret?",
            "What food did {NS} friends always ask for?",
            "What did {N} bring to every feast?",
        ),
        statements=(
            "{N} was famous for {his} {v}.",
            "{NS} signature dish was {v}.",
            "Every Sunday {N} cooked {v}.",
            "{N} served {v} to all {his} guests.",
            "{NS} friends always asked for {v}.",
            "{N} kept {his} recipe for {v} secret.",
            "{N} brought {v} to every feast.",
            "The food everyone wanted from {NO} was {v}.",
        ),
        parts=(INGREDIENTS, DISHES),
    ),
    Topic(
        "book", "what", "book",
        questions=(
            "What is the title of {NS} book?",
            "Which book did {N} write?",
            "What was {NS} only book called?",
            "Under what title did {N} publish a book?",
            "What did {N} call {his} book?",
            "What title did {N} give to {his} only book?",
            "By what title is {NS} book known?",
        ),
        statements=(
            "{N} wrote a book called {v}.",
            "{NS} only book was {v}.",
            "{N} was the author of {v}.",
            "{N} published {v} at {his} own expense.",
            "{v} was the one book {N} finished.",
            "{N} called {his} book {v}.",
            "The book that {N} left behind was {v}.",
            "After years of writing, {N} finished {v}.",
        ),
        parts=(("The",), TITLE_ADJECTIVES, TITLE_NOUNS),
    ),
    Topic(
        "birthday", "when", "date of birth",
        questions=(
            "When was {N} born?",
            "What is {NS} date of birth?",
            "On what day was {N} born?",
            "On which date did {N} come into the world?",
            "What date of birth is recorded for {N}?",
            "When exactly was {N} born?",
            "On what day of what year was {N} born?",
        ),
        statements=(
            "{N} was born on {v}.",
            "{NS} date of birth was {v}.",
            "{N} came into the world on {v}.",
            "The register gives {NS} date of birth as {v}.",
            "It was on {v} that {N} was born.",
            "{v} was the day on which {N} was born.",
            "{N} drew {his} first breath on {v}.",
            "{NS} birth is recorded for {v}.",
        ),
        parts=(DAYS, MONTHS, BIRTH_YEARS),
    ),
    Topic(
        "shop opening", "when", "shop opening",
        questions=(
            "When did {N} open a shop?",
            "In what month and year did {NS} shop open?",
            "When did {N} start trading?",
            "When did {NS} shop first open its doors?",
            "When did {N} welcome the first customers?",
            "In which month of which year did {N} set up shop?",
            "When did {N} go into trade?",
        ),
        statements=(
            "{N} opened a shop in {v}.",
            "{NS} shop first opened in {v}.",
            "In {v}, {N} set up shop.",
            "{N} welcomed {his} first customers in {v}.",
            "{N} started trading in {v}.",
            "{NS} shop opened its doors in {v}.",
            "It was in {v} that {N} opened a shop.",
            "{N} put up {his} first shop sign in {v}.",
        ),
        parts=(MONTHS, EVENT_YEARS),
    ),
    Topic(
        "wedding day", "when", "wedding day",
        questions=(
            "When did {N} get married?",
            "On what date was {NS} wedding?",
            "On what date did {N} marry?",
            "On which day did {N} get married?",
            "When was {NS} wedding?",
            "On what day of what year did {N} marry?",
            "When exactly did {N} marry?",
        ),
        statements=(
            "{N} got married on {v}.",
            "{NS} wedding day was {v}.",
            "{N} married on {v}.",
            "{NS} wedding took place on {v}.",
            "On {v}, {N} got married.",
            "It was on {v} that {N} married.",
            "{N} became a married {person} on {v}.",
            "{NS} wedding bells rang on {v}.",
        ),
        parts=(DAYS, MONTHS, EVENT_YEARS),
    ),
    Topic(
        "first prize", "when", "first prize",
        questions=(
            "When did {N} win a first prize?",
            "In what season and year did {N} win a prize?",
            "When was {N} first given a prize?",
            "When did {N} take home a first prize?",
            "When did the jury honour {N}?",
            "In which season of which year was {N} honoured?",
            "When did {N} come first in a contest?",
        ),
        statements=(
            "{N} won {his} first prize in {v}.",
            "{NS} first prize came in {v}.",
            "In {v}, {N} won a first prize.",
            "The jury honoured {NO} in {v}.",
            "{N} took home a first prize in {v}.",
            "It was in {v} that {N} won a prize.",
            "{N} was first given a prize in {v}.",
            "{N} came first in a contest in {v}.",
        ),
        parts=(SEASONS, EVENT_YEARS),
    ),
    Topic(
        "return", "when", "return from abroad",
        questions=(
            "When did {N} come home from abroad?",
            "When did {N} return from abroad?",
            "In what month and year did {N} return home?",
            "When did {NS} years abroad end?",
            "When was {N} back from abroad?",
            "In which month of which year did {N} come home?",
            "When did {N} move back from abroad?",
        ),
        statements=(
            "{N} came home from abroad in {v}.",
            "{N} returned from abroad in {v}.",
            "{NS} years abroad ended in {v}.",
            "In {v}, {N} came back from abroad.",
            "It was in {v} that {N} returned home.",
            "{N} moved back from abroad in {v}.",
            "{N} stayed abroad until {v}.",
            "{NS} return from abroad was in {v}.",
        ),
        parts=(MONTHS, EVENT_YEARS),
    ),
    Topic(
        "birthplace", "where", "place of birth",
        questions=(
            "Where was {N} born?",
            "What is {NS} place of birth?",
            "In what place was {N} born?",
            "Where did {N} come into the world?",
            "Where does {N} come from?",
            "What was {NS} birthplace?",
            "Where did {NS} life begin?",
        ),
        statements=(
            "{N} was born in {v}.",
            "{NS} place of birth was {v}.",
            "{N} came into the world in {v}.",
            "{NS} life began in {v}.",
            "{N} came from {v}.",
            "{v} was {NS} birthplace.",
            "It was in {v} that {N} was born.",
            "{N} was a native of {v}.",
        ),
        parts=(CITIES + VILLAGES,),
    ),
    Topic(
        "shop address", "where", "shop address",
        questions=(
            "Where was {NS} shop?",
            "What was the address of {NS} shop?",
            "Where did {N} keep a shop?",
            "Where did customers find {NS} shop?",
            "Where did {N} rent a shop?",
            "Where in town did {N} do business?",
            "At what address did {N} keep a shop?",
        ),
        statements=(
            "{NS} shop was on {v}.",
            "{N} kept a shop on {v}.",
            "{N} rented a shop on {v}.",
            "Customers found {NS} shop on {v}.",
            "{N} did business on {v}.",
            "The address of {NS} shop was {v}.",
            "{N} had {his} shop on {v}.",
            "It was on {v} that {N} kept a shop.",
        ),
        parts=(STREETS, STREET_KINDS),
    ),
    Topic(
        "school town", "where", "school town",
        questions=(
            "Where did {N} go to school?",
            "In which town did {N} go to school?",
            "Where was {N} sent to school?",
            "Where did {N} spend {his} school years?",
            "Where did {N} learn to read and write?",
            "In which town was {NS} school?",
            "Where was {N} educated?",
        ),
        statements=(
            "{N} went to school in {v}.",
            "{N} was sent to school in {v}.",
            "{NS} school was in {v}.",
            "{N} spent {his} school years in {v}.",
            "{N} learned to read and write in {v}.",
            "{N} was educated in {v}.",
            "It was in {v} that {N} went to school.",
            "{N} sat {his} school exams in {v}.",
        ),
        parts=(CITIES + VILLAGES,),
    ),
    Topic(
        "last home", "where", "last home",
        questions=(
            "Where did {N} settle in old age?",
            "Where did {N} spend {his} last years?",
            "Where was {NS} last home?",
            "Where did {N} grow old?",
            "To which place did {N} move in old age?",
            "Where did {N} live at the end?",
            "To which place did {N} retire?",
        ),
        statements=(
            "{N} settled in {v} in old age.",
            "{N} spent {his} last years in {v}.",
            "{NS} last home was in {v}.",
            "{N} grew old in {v}.",
            "In old age {N} moved to {v}.",
            "At the end {N} lived in {v}.",
            "{N} retired to {v}.",
            "{v} was where {N} grew old.",
        ),
        parts=(CITIES + VILLAGES,),
    ),
    Topic(
        "wedding place", "where", "wedding place",
        questions=(
            "Where did {N} get married?",
            "Where was {NS} wedding?",
            "In what place did {N} marry?",
            "Where was {NS} wedding held?",
            "Where did {NS} wedding take place?",
            "Where did {N} celebrate {his} wedding?",
            "In which place did {N} get married?",
        ),
        statements=(
            "{N} got married in {v}.",
            "{NS} wedding was in {v}.",
            "{N} married in {v}.",
            "{NS} wedding took place in {v}.",
            "{N} celebrated {his} wedding in {v}.",
            "{v} was where {N} got married.",
            "It was in {v} that {N} married.",
            "{N} said {his} wedding vows in {v}.",
        ),
        parts=(CITIES + VILLAGES,),
    ),
    _why(
        "sailing", "gave up sailing", "give up sailing", "giving up sailing",
        conclusions=(
            ("the rescue boat was never seen again", "nobody ever saw the rescue boat again"),
            ("every harbour brought bad dreams", "bad dreams came with every harbour"),
            ("a graveside promise bound {him}", "{he} was bound by a graveside promise"),
            ("the crew blamed {him} for the wreck", "{he} was blamed for the wreck by the crew"),
            ("{his} scars ached in the salt wind", "in the salt wind {his} scars ached"),
            ("the insurance money bought a vineyard", "a vineyard was bought with the insurance money"),
        ),
    ),
    _why(
        "medal", "refused the royal medal", "refuse the royal medal", "refusing the royal medal",
        conclusions=(
            ("the true hero got no pension", "no pension went to the true hero"),
            ("the minister signed the eviction", "the eviction was signed by the minister"),
            ("the minister skipped the funeral", "the funeral was skipped by the minister"),
            ("the speech named a coward as hero", "a coward was named as hero in the speech"),
            ("the court laughed at the widow", "the widow was laughed at in court"),
            ("stolen silver paid for the honour", "the honour was paid for with stolen silver"),
        ),
    ),
    _why(
        "trains", "swore off trains", "swear off trains", "swearing off trains",
        conclusions=(
            ("the last carriage left without the doctor", "the doctor was left behind by the last carriage"),
            ("the signalman slept through the night", "all through the night the signalman slept"),
            ("a tunnel collapse cost {him} {his} hearing", "{his} hearing was lost in a tunnel collapse"),
            ("a thief took the inheritance", "the inheritance was taken by a thief"),
            ("the new railway cut the graveyard in two", "the graveyard was cut in two by the new railway"),
            ("the conductor handed {him} to the police", "{he} was handed to the police by the conductor"),
        ),
    ),
    _why(
        "bees", "kept bees on the roof", "keep bees on the roof", "keeping bees on the roof",
        conclusions=(
            ("honey was the only medicine left", "no medicine was left but honey"),
            ("the orchards stopped bearing fruit", "fruit no longer grew in the orchards"),
            ("the landlord banned all larger animals", "all larger animals were banned by the landlord"),
            ("only the humming helped {him} to sleep", "{he} could sleep only with the humming"),
            ("an old monk left {him} three hives", "three hives came to {him} from an old monk"),
            ("wax fetched more than bread", "bread fetched less than wax"),
        ),
    ),
    _why(
        "lighthouse", "moved into a lighthouse", "move into a lighthouse", "moving into a lighthouse",
        conclusions=(
            ("only the keeper got a stove", "a stove came only to the keeper"),
            ("no other window faced the sea", "the sea was faced by no other window"),
            ("no inland landlord would take {him}", "{he} was turned away by every inland landlord"),
            ("the coast guard owed {him} a favour", "{he} was owed a favour by the coast guard"),
            ("the tower was the only dry building left", "no dry building was left but the tower"),
            ("{he} vowed to warn passing ships", "{he} made a vow to warn passing ships"),
        ),
    ),
    _why(
        "signing", "learned sign language", "learn sign language", "learning sign language",
        conclusions=(
            ("the only survivor was left deaf", "the only survivor ended up deaf"),
            ("the new judge was deaf from birth", "from birth the new judge was deaf"),
            ("a silent cousin inherited the house", "the house was inherited by a silent cousin"),
            ("the deaf school offered {him} a post", "{he} was offered a post by the deaf school"),
            ("the smoke left {him} without a voice", "{he} was left without a voice by the smoke"),
            ("the court needed an interpreter at once", "an interpreter was needed in court at once"),
        ),
    ),
    _why(
        "lamp", "slept with a lamp lit", "sleep with a lamp lit", "sleeping with a lamp lit",
        conclusions=(
            ("burglars came back three times", "three times burglars came back"),
            ("strange noises rose from the cellar", "from the cellar strange noises rose"),
            ("{his} brother got lost in the dark", "in the dark {his} brother got lost"),
            ("rats bit the baby", "the baby was bitten by rats"),
            ("{he} had to guard the strongbox", "the strongbox had to be guarded by {him}"),
            ("total darkness gave {him} seizures", "{he} had seizures in total darkness"),
        ),
    ),
    _why(
        "fish", "gave up eating fish", "give up eating fish", "giving up eating fish",
        conclusions=(
            ("dye turned the river black", "the river was turned black by dye"),
            ("a swallowed bone nearly killed {him}", "{he} was nearly killed by a swallowed bone"),
            ("the pond became a grave", "a grave was made of the pond"),
            ("the cannery poisoned half the village", "half the village was poisoned by the cannery"),
            ("a monk foretold death by herring", "death by herring was foretold by a monk"),
            ("{he} lived on eels all winter", "all winter {he} lived on eels"),
        ),
    ),
    _why(
        "barefoot", "walked to work barefoot", "walk to work barefoot", "walking to work barefoot",
        conclusions=(
            ("{his} only boots paid for the coffin", "the coffin was paid for with {his} only boots"),
            ("a pilgrim's vow bound the whole family", "the whole family was bound by a pilgrim's vow"),
            ("{he} lost a foolish wager", "a foolish wager was lost by {him}"),
            ("the cobbler would no longer serve {him}", "{he} was no longer served by the cobbler"),
            ("a healer prescribed cold and gravel", "cold and gravel were prescribed by a healer"),
            ("every shoe in the house burned", "not a shoe in the house escaped burning"),
        ),
    ),
)  # fmt: skip
