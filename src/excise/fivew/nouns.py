"""Nouns that say what kind of thing a question asks for."""

from __future__ import annotations

import re


def listed(words: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(words.split())


PERSON = listed(
    "person people individual individuals man men woman women boy girl child children baby human someone somebody guy lady gentleman actor "
    "actors actress actresses artist artists painter sculptor author authors writer novelist poet playwright journalist reporter editor "
    "columnist blogger anchor host presenter broadcaster narrator singer singers rapper musician drummer guitarist bassist vocalist composer "
    "songwriter producer director filmmaker screenwriter animator cartoonist illustrator choreographer dancer comedian comic model magician "
    "illusionist president presidents chancellor minister premier governor mayor senator congressman congresswoman politician politicians "
    "leader leaders ruler king queen prince princess emperor empress pharaoh tsar czar sultan caliph duke duchess earl baron lord pope bishop "
    "archbishop cardinal priest monk nun rabbi imam saint prophet president-elect spokesman spokeswoman spokesperson speaker ambassador "
    "diplomat envoy secretary treasurer judge justice lawyer attorney prosecutor sheriff commissioner officer detective spy agent soldier "
    "general admiral colonel captain commander lieutenant sergeant warrior knight pilot astronaut cosmonaut explorer sailor navigator scientist "
    "physicist chemist biologist mathematician astronomer geologist economist historian philosopher psychologist sociologist anthropologist "
    "archaeologist engineer architect inventor discoverer programmer designer doctor physician surgeon nurse dentist professor teacher tutor "
    "scholar student pupil researcher expert critic chef baker farmer driver worker employee employer boss manager coach trainer referee umpire "
    "player players footballer cricketer golfer boxer wrestler swimmer skater runner sprinter athlete athletes goalkeeper striker quarterback "
    "pitcher champion winner winners loser recipient nominee candidate contestant competitor opponent founder co-founder owner chairman "
    "chairwoman chairperson ceo executive entrepreneur businessman businesswoman billionaire banker heir successor predecessor replacement "
    "deputy assistant husband wife spouse partner boyfriend girlfriend fiance fiancee father mother parent parents brother brothers sister "
    "sisters sibling siblings son sons daughter daughters uncle aunt cousin nephew niece grandfather grandmother grandson granddaughter "
    "ancestor descendant widow friend neighbour neighbor killer murderer assassin terrorist suspect victim victims perpetrator criminal serial- "
    "killer survivor witness whistleblower hacker character characters protagonist antagonist villain hero heroine superhero figure celebrity "
    "personality star youtuber influencer activist philanthropist feminist suffragette revolutionary slave settler immigrant rival master "
    "mentor apprentice colleague member members citizen patient customer guest creator maker"
)
"""People, real or invented."""
PERSON_ENDING = re.compile(r"(?:[a-z]{3,}ologist|[a-z]{2,}ician|[a-z]{3,}woman|[a-z]{3,}person|[a-z]{3,}wright)$")

TIME = listed(
    "year years date dates day days month months time times week weeks weekday weekend hour minute moment decade decades century centuries "
    "millennium era eras epoch age-of period periods birthday birthdate anniversary deadline eve night evening morning afternoon"
)
"""Points and spans on the calendar or the clock. How long something takes is no time in this sense."""

PLACE = listed(
    "place places location locations country countries nation nations city cities town towns village villages hamlet state states province "
    "provinces county counties region regions district districts territory territories continent continents island islands peninsula "
    "archipelago capital capitals borough boroughs neighborhood neighbourhood suburb municipality prefecture canton parish street road avenue "
    "address venue site destination birthplace hometown homeland area areas locality settlement metropolis sea seas ocean oceans river rivers "
    "lake lakes mountain mountains volcano strait straits desert valley bay gulf hemisphere kingdom planet"
)
"""Geographic places. Buildings and institutions are things, unless the question asks where."""
SITE = listed(
    "university college school academy institute institution hospital airport station stadium arena theatre theater museum church cathedral "
    "temple mosque palace castle park hotel restaurant building prison cemetery camp base studio court border bridge harbour harbor port room "
    "house hall"
)
"""Buildings and the like: a place after a preposition ("At which university ...")."""

REASON = listed("reason reasons cause causes motive motives motivation rationale purpose explanation justification")
"""Reasons."""
CAUSING = listed("caused cause causes prompted prompts led triggered triggers motivated motivates drove compelled inspired")
"""After "what": what brought something about."""

NAMING = listed("name names identity title nickname pseudonym surname alias")
"""What is asked for is that of which the name is asked."""

NOT_A_PLACE = listed("area state field site")
"""Nouns that mean something else before "of" ("the state of the economy", "what area of research")."""


def kind(noun: str) -> str | None:
    """who, when, where or why, where a noun says so."""
    if noun in PERSON or PERSON_ENDING.search(noun):
        return "who"
    if noun in TIME:
        return "when"
    if noun in PLACE:
        return "where"
    return "why" if noun in REASON else None
