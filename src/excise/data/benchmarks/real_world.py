"""Real-world multiple-choice questions that a small instruct model answers right: what unlearning must not break.

We wrote 179 candidates and kept the 107 that SmolLM2-135M-Instruct gets right by a margin: the question as user turn of
its chat template, each option as the answer, mean log-likelihood per token; the right option leads every other one by
more than 0.5 nats.
"""

from __future__ import annotations

import hashlib

from excise.data.example import Example

_QUESTIONS = """
geography|What is the capital of Germany?|Berlin|Vienna|Prague|Warsaw
geography|What is the capital of Japan?|Tokyo|Beijing|Seoul|Bangkok
geography|What is the capital of Russia?|Moscow|Kyiv|Warsaw|Helsinki
geography|What is the capital of China?|Beijing|Tokyo|Hanoi|Seoul
geography|What is the capital of Canada?|Ottawa|Dallas|Lima|Oslo
geography|What is the capital of Portugal?|Lisbon|Madrid|Rome|Paris
geography|What is the capital of Austria?|Vienna|Berlin|Oslo|Madrid
geography|What is the capital of Ireland?|Dublin|London|Oslo|Paris
geography|What is the capital of Poland?|Warsaw|Madrid|Lisbon|Athens
geography|What is the capital of Cuba?|Havana|Lima|Madrid|Caracas
geography|What is the capital of the United States?|Washington, D.C.|Chicago|Houston|Boston
geography|Which ocean lies between Europe and North America?|\
The Atlantic Ocean|The Indian Ocean|The Arctic Sea|The Black Sea
geography|What is the largest ocean on Earth?|The Pacific Ocean|The Arctic Ocean|The Indian Ocean|The Baltic Sea
geography|On which continent is Egypt?|Africa|Europe|Australia|South America
geography|On which continent is Brazil?|South America|Africa|Europe|Asia
geography|On which continent is France?|Europe|Africa|Asia|Australia
geography|On which continent is Kenya?|Africa|Asia|Europe|North America
geography|In which country is the city of Milan?|Italy|Norway|Mexico|Russia
geography|Which river flows through London?|The Thames|The Danube|The Rhine|The Volga
geography|Which river flows through Egypt?|The Nile|The Amazon|The Thames|The Danube
geography|In which ocean are the islands of Hawaii?|The Pacific|The Atlantic|The Arctic|The Baltic
geography|What is the frozen continent at the South Pole called?|Antarctica|Australia|Greenland|Alaska
science|What gas do plants take in from the air?|Carbon dioxide|Helium|Neon|Argon
science|What is the chemical formula of water?|H2O|CO2|NaCl|CH4
science|At what temperature does water boil at sea level, in degrees Celsius?|\
100 degrees|40 degrees|60 degrees|20 degrees
science|Which planet is closest to the Sun?|Mercury|Jupiter|Saturn|Neptune
science|What orbits the Earth?|The Moon|The Sun|Saturn|Mars
science|Which organ pumps blood through the body?|The heart|The liver|The stomach|The skin
science|Which organ do people use to think?|The brain|The liver|The lungs|The kidneys
science|Which organs do people use to breathe?|The lungs|The kidneys|The bones|The ears
science|Which metal is attracted by a magnet?|Iron|Gold|Silver|Lead
science|What is the chemical symbol of oxygen?|O|Fe|Au|Na
science|What is the chemical symbol of gold?|Au|Fe|Pb|He
science|What is water called when it becomes a gas?|Steam|Ice|Snow|Mud
science|How do plants make food from sunlight?|Photosynthesis|Digestion|Evaporation|Fermentation
science|Which star is closest to the Earth?|The Sun|Sirius|Vega|Polaris
science|Which part of a plant takes up water from the soil?|The roots|The petals|The fruit|The pollen
science|What is a scientist who studies living things called?|A biologist|A geologist|A lawyer|A plumber
science|What do we call molten rock that flows out of a volcano?|Lava|Sand|Coal|Clay
science|What instrument is used to look at distant stars?|A telescope|A microscope|A thermometer|A compass
science|What instrument measures temperature?|A thermometer|A compass|A ruler|A clock
science|Which vitamin does the skin make in sunlight?|Vitamin D|Vitamin B|Vitamin K|Vitamin E
science|Who proposed the theory of relativity?|Albert Einstein|Charles Dickens|Napoleon Bonaparte|Marco Polo
science|Who formulated the laws of motion?|Isaac Newton|William Shakespeare|Pablo Picasso|Julius Caesar
science|Who wrote about evolution by natural selection?|Charles Darwin|Ludwig van Beethoven|Abraham Lincoln|Marco Polo
arithmetic|What is 1 plus 1?|2|5|7|9
arithmetic|What is 5 plus 5?|10|13|17|19
arithmetic|What is 10 plus 10?|20|35|50|15
arithmetic|What is 2 times 5?|10|14|18|12
arithmetic|What is 10 times 10?|100|50|30|70
arithmetic|What is 4 times 5?|20|35|13|50
arithmetic|What is half of 10?|5|8|9|7
arithmetic|What is half of 100?|50|30|70|90
arithmetic|How many hours are there in a day?|24|15|36|90
arithmetic|How many months are there in a year?|Twelve|Nine|Seven|Twenty
arithmetic|How many centimetres are there in a metre?|100|15|60|40
language|What is the opposite of big?|Small|Wet|Happy|Yellow
language|What is the opposite of up?|Down|Left|Round|Under
language|What is the opposite of day?|Night|Table|Cloud|River
language|What is the opposite of light?|Dark|Wooden|Sweet|Square
language|What is the opposite of true?|False|Heavy|Small|Warm
language|What is the plural of mouse?|Mice|Mouser|Mousing|Moused
language|What is the plural of child?|Children|Childish|Childly|Childing
language|What is the past tense of run?|Ran|Running|Runner|Runs
language|What language is spoken in Brazil?|Portuguese|Norwegian|Dutch|Greek
language|What language is spoken in Mexico?|Spanish|Italian|Dutch|Russian
language|What does the Spanish word hola mean?|Hello|Goodbye|Water|House
language|What does the French word merci mean?|Thank you|Good night|Cheese|Window
language|What is the first letter of the English alphabet?|A|M|Z|Q
language|What do we call a person who writes books?|An author|A plumber|A pilot|A baker
language|What do we call a person who teaches at a school?|A teacher|A sailor|A farmer|A pilot
history|Who wrote the play Romeo and Juliet?|William Shakespeare|Charles Darwin|Mark Twain|Albert Einstein
history|Who painted the Mona Lisa?|Leonardo da Vinci|Vincent van Gogh|Charles Dickens|Isaac Newton
history|In which year did the Second World War end?|1945|1914|1815|1776
history|In which year did the First World War begin?|1914|1848|1789|1950
history|In which year did the United States declare independence?|1776|1850|1914|1945
history|Who led Germany during the Second World War?|Adolf Hitler|Napoleon Bonaparte|Julius Caesar|George Washington
history|Which ship sank in 1912 after hitting an iceberg?|The Titanic|The Mayflower|The Victory|The Bounty
history|Who sailed across the Atlantic in 1492?|Christopher Columbus|Neil Armstrong|Isaac Newton|Winston Churchill
history|Which people built the Colosseum?|The Romans|The Vikings|The Aztecs|The Mongols
history|Who were the kings of ancient Egypt?|Pharaohs|Samurai|Senators|Cowboys
history|Which wall divided a German city until 1989?|The Berlin Wall|The Great Wall|Hadrian's Wall|The Western Wall
history|Who helped lead India to independence without violence?|\
Mahatma Gandhi|Julius Caesar|Napoleon Bonaparte|Henry Ford
history|Which South African leader spent 27 years in prison?|Nelson Mandela|Isaac Newton|Mark Twain|Marco Polo
animals|What sound does a dog make?|Bark|Moo|Quack|Neigh
animals|What sound does a cow make?|Moo|Bark|Tweet|Hiss
animals|What is a baby dog called?|A puppy|A calf|A chick|A lamb
animals|What is a baby cat called?|A kitten|A calf|A foal|A lamb
animals|What is a baby cow called?|A calf|A kitten|A puppy|A cub
animals|What is the largest animal on Earth?|The blue whale|The house cat|The honey bee|The brown bear
animals|What is the tallest animal on land?|The giraffe|The rabbit|The wolf|The mouse
animals|Which insect makes honey?|The bee|The ant|The moth|The beetle
animals|Which bird cannot fly and lives in Antarctica?|The penguin|The eagle|The swan|The robin
animals|Which animal has a trunk?|The elephant|The lion|The horse|The frog
animals|Which animal is known as the king of the jungle?|The lion|The rabbit|The goat|The duck
animals|What do caterpillars turn into?|Butterflies|Spiders|Birds|Frogs
animals|What do tadpoles turn into?|Frogs|Birds|Snakes|Bees
everyday|Which month comes after January?|February|June|October|August
everyday|What do you use to cut paper?|Scissors|A spoon|A pillow|A towel
everyday|What do people use an umbrella for?|To stay dry in the rain|To cook dinner|To write letters|To cut wood
everyday|What do people wear on their feet?|Shoes|Gloves|Hats|Glasses
everyday|What is bread made from?|Flour|Glass|Stone|Plastic
everyday|What is cheese made from?|Milk|Sand|Apples|Rice
everyday|Where do people go to borrow books?|The library|The bakery|The airport|The beach
everyday|Who treats sick people?|A doctor|A carpenter|A painter|A tailor
everyday|Who puts out fires?|Firefighters|Bakers|Teachers|Tailors
everyday|Who flies an aeroplane?|A pilot|A baker|A farmer|A nurse
"""


def real_world_examples() -> tuple[Example, ...]:
    """The questions as examples; they never change, whatever the seed."""
    return tuple(_example(number, line) for number, line in enumerate(_QUESTIONS.strip().splitlines()))


def _example(number: int, line: str) -> Example:
    """One line, "subject|question|right option|wrong|wrong|wrong", as an example."""
    subject, question, right, *wrong = line.split("|")
    gold = hashlib.sha256(question.encode()).digest()[0] % (len(wrong) + 1)
    return Example(
        id=f"real-{number}",
        prompt=question,
        answer=right,
        span=right,
        paraphrased_answer=right,
        false_answers=tuple(wrong),
        options=(*wrong[:gold], right, *wrong[gold:]),
        gold=gold,
        label=subject,
    )
