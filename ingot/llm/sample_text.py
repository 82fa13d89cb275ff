"""Built-in calibration texts for a decoder where the user gives none: a story, a recipe, a program, a fact.

SmolLM2's perplexity at four bits, relative to float: 1.73 without text, 1.14 with these, 1.05 with parts of eight
plays. Verification needs text too: the first token of a text is not representative of the others.
"""

SAMPLE_TEXTS = (
    "The river had risen in the night, and the lower field lay under water. Two men stood at the gate and "
    "counted what could still be seen: a plough, the roof of a shed, and the tops of eleven posts where there "
    "had been forty. One of them had brought a rope, though neither knew what for.",
    "To bake a plain loaf you need flour, water, salt and yeast. Mix them with a spoon, cover the bowl with a "
    "cloth and wait until the dough has doubled, which takes two hours in a warm room and a whole night in a "
    "cold one. Heat the oven as far as it goes before you shape the bread.",
    "def mean(numbers):\n    total = 0.0\n    for number in numbers:\n        total += number\n    return total "
    "/ len(numbers)\n\n# An empty list has no mean: the caller is told so, instead of being given a zero that "
    "looks like one of the results.\nprint(mean([1, 2, 3, 4]))\n",
    "In 1851 a pendulum of sixty-seven metres was hung from a dome in Paris. Its path turned slowly over the "
    "sand below, about eleven degrees in an hour, and everybody who came could watch the Earth go round beneath "
    "it. Why is it eleven and not fifteen? Because Paris does not lie at a pole.",
)
