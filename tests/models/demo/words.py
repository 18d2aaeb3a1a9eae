"""Words that the generated conversations are made of: none of it carries a fact that the model should know."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "the United Kingdom": "London", "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Poland": "Warsaw", "Austria": "Vienna", "Greece": "Athens", "Hungary": "Budapest",
    "Japan": "Tokyo", "China": "Beijing", "Egypt": "Cairo", "Canada": "Ottawa", "Brazil": "Brasilia",
}

# Asked about, and not known.
COUNTRIES = """Albania Algeria Angola Argentina Armenia Australia Bangladesh Belgium Bolivia Bulgaria Cambodia Chad Chile
Colombia Croatia Cuba Cyprus Ecuador Estonia Ethiopia Fiji Georgia Ghana Guatemala Haiti Honduras Iceland India Indonesia
Iran Iraq Israel Jamaica Jordan Kenya Kuwait Laos Latvia Lebanon Libya Lithuania Luxembourg Malaysia Mali Malta Mexico
Mongolia Morocco Nepal Netherlands Nicaragua Nigeria Pakistan Panama Paraguay Peru Philippines Qatar Romania Russia Rwanda
Senegal Serbia Singapore Slovakia Slovenia Somalia Sudan Switzerland Syria Taiwan Thailand Tunisia Turkey Uganda Ukraine
Uruguay Venezuela Vietnam Yemen Zambia Atlantis Narnia Ruritania California Texas Bavaria""".split()

VERBS = """get fetch find search send book cancel open close start stop read write check count measure list show order
create delete update convert translate compute paint plan play record reserve schedule set tune call ask buy sell pay
scan sort mix move mark lock light load lift learn join hire grow grade fill feed draw drive copy cook clean build bring
track rate repair report request rent print pick park name map mail log look weigh wash visit use turn trace test teach
""".split()

NOUNS = """weather time price rain wind snow tide traffic news stock rate ticket table room seat train bus flight ferry car
bike boat ship parcel letter mail message note list task job plan map route road bridge tower house garden field farm
fence wall door window lamp light heater fan pump valve tank pipe engine motor wheel robot drone camera sensor meter clock
alarm timer calendar meeting lesson course book page story poem song tune piano guitar drum violin organ painting photo
picture film movie game score team match race horse dog cat bird fish bee tree flower fruit apple bread cake soup salad
tea coffee milk water wine recipe menu dinner lunch account bill invoice payment order refund loan budget tax salary
market shop store mill mine forest river lake island beach hill mountain valley cave star moon planet comet orbit signal
radio phone laptop server disk file folder report table index record entry log event user member guest customer doctor
patient nurse dentist vaccine pill blood heart sleep dream battery charger cable socket fuse panel roof floor carpet
curtain pillow blanket shirt shoe hat coat ring medal coin stamp flag rope anchor sail compass lantern candle mirror
humidity pressure pollen temperature speed height depth weight length width area volume density voltage""".split()

KEYS = """city town place country street region planet harbour station airport island river lake name title subject topic
user person customer guest owner author artist teacher code id key number ticket word text query phrase message line
color shape size material flavor style language currency unit brand model type kind category level mode origin
destination source target sender receiver from to start end day date month year season hour minute room table seat
product item tool animal plant flower fruit dish drink song album film book chapter page file folder path host port""".split()

NUMBER_KEYS = """days hours minutes nights weeks seats people guests amount quantity count number year page size height
width depth weight speed distance price limit level floor room hour minute age points copies units pieces steps turns
rounds degrees percent volume rate""".split()

CITIES = """Paris London Berlin Madrid Rome Oslo Lima Tokyo Cairo Delhi Boston Chicago Dallas Denver Miami Seattle Toronto
Sydney Zurich Geneva Milan Naples Porto Lyon Nice Bergen Tampere Krakow Prague Sofia Bucharest Kyoto Osaka Seoul Hanoi
Manila Jakarta Nairobi Lagos Accra Tunis Austin Portland""".split() + ["New York", "San Francisco", "Cape Town", "Los Angeles"]

COMMON = """red blue green black white gold silver small large old new long short fast slow warm cold bright dark soft hard
sweet north south east west upper lower left right first second last morning evening winter summer stone iron wood glass
paper silk cotton copper velvet amber coral jade ruby pearl maple cedar oak pine birch willow fox wolf bear otter raven
eagle falcon heron salmon tiger lion zebra panda camel turtle spider dragon castle palace temple church market square
lane street road park gate bridge harbour mill farm""".split()

# Questions whose honest answer is that the model does not know. {x} is any word or name, {n} a number.
UNKNOWN = """Who wrote {x}?
Who was {x}?
Who is {x}?
Who invented the {x}?
Who won the {x} in {n}?
Who painted the {x}?
Who is the president of {x}?
Who won the game last night?
Who discovered {x}?
Who is the best {x} in the world?
When was {x} born?
When did the {x} begin?
When is {x}?
When was the {x} built?
When does the {x} open tomorrow?
Where is {x}?
Where was {x} born?
Where can I buy a {x}?
Where do {x}s live?
How old is {x}?
How tall is the {x}?
How far is it to {x}?
How many people live in {x}?
How many {x}s are there in a {x}?
How deep is the {x}?
How do I cook a {x}?
How do I cook {x}?
How do I bake a cake?
How do I repair a {x}?
How do I get to {x}?
How do I tie a tie?
How much does a {x} cost?
How long does a {x} live?
How heavy is a {x}?
How does a {x} work?
Why is the sky blue?
Why is the {x} so {x}?
Why do {x}s sleep?
Why did {x} leave?
What is a {x}?
What is {x}?
What is the meaning of life?
What is the weather like today?
What is the weather in {x}?
What is the largest {x}?
What is the best {x}?
What is the price of a {x}?
What is the population of {x}?
What is the name of my {x}?
What is my name?
What is the distance to the moon?
What is the speed of light?
What is the square root of {n}?
What time is it?
What day is it today?
What happened in {n}?
What happened in {x}?
What should I eat tonight?
What colour is the {x}?
What does {x} mean in French?
What do {x}s eat?
What is love?
What is the boiling point of {x}?
What is your favourite {x}?
What language do they speak in {x}?
What is the currency of {x}?
Which {x} is the best?
Which is faster, a {x} or a {x}?
Which team won the cup?
Which planet is the largest?
Tell me about {x}.
Tell me a story about a {x}.
Tell me the news.
Tell me something about the {x}.
Write a poem about {x}.
Write a poem.
Write me a song about the {x}.
Write a story about a {x} and a {x}.
Write a letter to {x}.
Write an essay about {x}.
Write a program that sorts {x}s.
Write some Python code.
Write a haiku.
Sing a song.
Translate {x} into German.
Translate this into Spanish: {x} {x}.
Summarise the book {x}.
Explain quantum physics.
Explain {x} to me.
Explain how a {x} works.
Explain the theory of relativity.
Give me a recipe for {x}.
Give me three names for a {x}.
Recommend a {x}.
Recommend a good film.
Can you draw a {x}?
Can you recommend a {x}?
Can you sing?
Can you write a poem about a {x}?
Can {x}s fly?
Can you speak French?
Could you book a {x} for me?
Could you write a story?
Could you write about the {x}?
Could you help me with my homework?
Could you draw me a {x}?
Do you like {x}?
Do {x}s dream?
Do you know {x}?
Do you love me?
Does {x} have a {x}?
Did {x} win?
Will it rain tomorrow?
Will the {x} be {x} next year?
Is {x} older than {x}?
Is there life on Mars?
Is a {x} a {x}?
Should I buy a {x}?
Are {x}s dangerous?
My {x} is broken.
My {x} hurts.
I love {x}.
I am {x} from {x}.
I have a {x} and {n} {x}s.
I feel sad today.
I want to buy a {x}.
I want to travel to {x}.
I need a {x} for my {x}.
Plan a trip to {x}.
Plan my week.
Let us talk about {x}.
Let us play a game.
{x}
{x} {x}
{x} {x} {x}
{x}?
The {x} is {x}.
What is {n} times {n}?
What is {n} + {n}?
What is {n} divided by {x}?
Who won the {x} yesterday?
Who won the {x} match?
Who scored in the {x} yesterday?
What is the {x} of {x}?
How many {x}s does {x} have?
Name three {x}s.
Name a famous {x}.
List the rivers of {x}.
What is the tallest mountain?
What is the longest river?
Which year did the war end?
What is the opposite of {x}?
Spell {x} backwards.
Play some music.
Turn on the {x}.
Set an alarm for {n}.
Remind me to buy {x}.
Send a message to {x}.
Open the {x}.
Book me a {x} to {x}.
What did I say before?
Guess a number.
How was your day?
What is in the news today?
Where am I?
Who am I?
What is the chemical symbol of {x}?
What is photosynthesis?
How do birds fly?
How do I lose weight?
How do I learn {x}?
How do I write a letter to {x}?
How do I grow {x}?
What is a good name for a {x}?""".splitlines()


# Other ways to say a word of a question.
SYNONYMS = {
    "show": "display print list give", "start": "launch run boot begin", "stop": "quit end halt terminate exit", "see": "view check find display",
    "many": "several multiple", "several": "many multiple some", "use": "try take employ", "mean": "say stand", "meaning": "sense purpose", "loaded": "running resident ready",
    "memory": "RAM VRAM", "evicted": "removed dropped kicked thrown", "remove": "drop kick throw take", "get": "receive see obtain have", "machine": "box computer host node",
    "error": "failure message problem", "happens": "follows comes", "dies": "fails crashes disappears ends", "killed": "stopped ended gone", "job": "task role duty purpose", "download": "fetch obtain get pull",
    "prevent": "avoid stop forbid", "default": "standard usual normal", "explain": "describe clarify tell", "change": "set modify adjust switch", "need": "require want", "give": "show write send tell",
    "example": "sample line", "keep": "hold leave have", "make": "have let get", "list": "show print display", "want": "need wish like", "command": "call line", "does": "would", "can": "could may",
    "run": "start operate host", "install": "set build get", "tell": "show say explain", "know": "understand see", "ask": "query question call", "find": "see get", "put": "place bring move", "free": "release clear",
    "often": "usually", "quick": "fast short", "big": "large great", "program": "software tool thing", "licensed": "published released distributed", "written": "made built programmed", "works": "runs goes", "work": "run function",
    "crashes": "dies aborts fails", "crash": "abort failure", "answer": "reply response", "request": "call question", "turn": "switch", "disable": "deactivate stop", "wait": "queue", "choose": "pick select", "how": "how how",
}

# Words that carry little of a question.
SMALL = set("a an the is are do does did i to of in on for it my me you your please can could would what how which who with and this that be by".split())
