// The order of the results, and which words of a question count: Sphinx's search reads `splitQuery` and `Scorer`.
// The rarer a word, the more it counts; a word of a heading or a subject counts more than one of the text, and a word
// of a long page less.
const PLACES = [
  [/^recipes\/guides\//, 1.3], [/^recipes\/models\/(?!index)/, 0.3], [/^CHANGELOG/, 0.3], [/^tests\//, 0.5],
  [/^recipes\/reference\/commands/, 0.6],
];
const once = make => {
  const kept = new Map();
  return key => kept.get(key) ?? kept.set(key, make(key)).get(key);
};
const stem = word => new Stemmer().stemWord(word.toLowerCase());
const counts = word => !stopwords.has(word.toLowerCase()) && !/^\d+$/.test(word) && word.length > 2;
const subjects = once(() => {  // stem -> pages
  const found = new Map();
  for (const [entry, places] of Object.entries(Search._index.indexentries))
    for (const word of entry.split(/[^\p{Letter}\p{Number}]+/u).map(stem))
      found.set(word, new Set([...(found.get(word) ?? []), ...places.map(([file]) => file)]));
  return found;
});
const pages = once(word => {  // those with the word (a stem) in the text, in a heading or subject, and all of them
  const {terms, titleterms} = Search._index;
  const found = index => {
    const names = Object.hasOwn(index, word) ? [word] : Object.keys(index).filter(name => name.includes(word));
    return new Set(names.flatMap(name => index[name]));
  };
  const text = found(terms), head = new Set([...found(titleterms), ...(subjects().get(word) ?? [])]);
  return {text, head, all: new Set([...text, ...found(titleterms)])};
});
const lengths = once(() => {  // different words of each page, in those of the usual page
  const sizes = new Array(Search._index.docnames.length).fill(1);
  for (const file of Object.values(Search._index.terms).flat()) sizes[file] += 1;
  const usual = [...sizes].sort((a, b) => a - b)[sizes.length >> 1];
  return sizes.map(size => Math.max(1, size / usual));
});
// leave out words that no page has, then the rarest until some page has all of the rest
const kept = once(query => {
  let words = query.split(/[^\p{Letter}\p{Number}_]+/gu).filter(word => word);
  const all = word => pages(stem(word)).all;
  const known = words.filter(word => !counts(word) || all(word).size);
  words = known.some(counts) ? known : words;
  const common = () => {
    const [first, ...rest] = words.filter(counts).map(all);
    return [...first].filter(file => rest.every(files => files.has(file)));
  };
  while (words.filter(counts).length > 1 && !common().length) {
    const rarest = words.filter(counts).reduce((a, b) => (all(b).size < all(a).size ? b : a));
    words = words.filter(word => word !== rarest);
  }
  return words;
});
var splitQuery = query => [...kept(query)];
var Scorer = {
  score: result => {
    const [docname, , , , score, , kind] = result;
    const place = PLACES.find(([path]) => path.test(docname))?.[1] ?? 1;
    if (kind === "index") result[2] = "";  // an entry has no text of its own for the result to show
    if (kind !== "text") return score * place;
    const file = Search._index.docnames.indexOf(docname), asked = document.querySelector('input[name="q"]')?.value ?? "";
    let sum = 0;
    for (const word of new Set(kept(asked).filter(counts).map(stem))) {
      const {text, head, all} = pages(word), rare = Math.log(1 + Search._index.docnames.length / (1 + all.size));
      sum += rare * ((head.has(file) ? 3 : 0) + (text.has(file) ? 1 : 0) / Math.sqrt(lengths()[file]));
    }
    return sum * place;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 5, 1: 3, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
