"use strict";
{
const data = JSON.parse(document.getElementById("data").textContent), block = data.block;
const at = id => document.getElementById(id);
const make = (tag, text, parent) => { const one = document.createElement(tag); one.textContent = text; parent.append(one); return one; };
const fixed = (value, digits) => value === null ? "-" : value.toFixed(digits);
let shown = null;  // {map, head, cells, cell, left, top}

at("about").textContent = (block > 1 ? `Each cell is the largest of ${block} x ${block} weights. ` : "")
  + (data.without.length ? `Without attention weights: ${data.without.join(", ")}.` : "");

const cellsOf = (map, head) => Uint8Array.from(atob(map.heads[head].bytes), letter => letter.charCodeAt(0));
const rowsOf = map => Math.ceil(map.queries.length / block), columnsOf = map => Math.ceil(map.keys.length / block);
const shade = part => { const dark = Math.sqrt(part / 255); return [255 - 244 * dark, 255 - 168 * dark, 255 - 47 * dark]; };

function pictureOf(map, cells) {
  const canvas = document.createElement("canvas");
  canvas.width = columnsOf(map); canvas.height = rowsOf(map);
  const image = new ImageData(canvas.width, canvas.height);
  cells.forEach((part, place) => image.data.set([...shade(part), 255], 4 * place));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
function showLayer(place) {
  at("place").value = place;
  const map = data.maps[place];
  at("heads").replaceChildren();
  for (let head = 0; head < map.heads.length; head++) {
    const figure = make("figure", "", at("heads"));
    figure.append(pictureOf(map, cellsOf(map, head)));
    make("figcaption", `head ${head}`, figure);
    figure.onclick = () => showHead(place, head);
  }
}
function showHead(place, head) {
  if (shown === null || shown.place !== place) showLayer(place);
  const map = data.maps[place], cells = cellsOf(map, head), rows = rowsOf(map), columns = columnsOf(map);
  const cell = Math.max(2, Math.min(26, Math.floor(700 / Math.max(rows, columns)))), labels = block === 1 && cell >= 9;
  const canvas = at("large"), draw = canvas.getContext("2d"), font = `${Math.min(13, cell)}px system-ui, sans-serif`;
  draw.font = font;
  const room = texts => labels ? Math.min(180, Math.max(...texts.map(text => draw.measureText(text).width))) + 8 : 0;
  const left = room(map.queries), top = room(map.keys);
  canvas.width = left + columns * cell; canvas.height = top + rows * cell;
  draw.font = font; draw.textBaseline = "middle"; draw.imageSmoothingEnabled = false; draw.fillStyle = "#222";
  draw.drawImage(pictureOf(map, cells), left, top, columns * cell, rows * cell);
  if (labels) {
    map.queries.forEach((text, row) => draw.fillText(text, 2, top + (row + 0.5) * cell, left - 6));
    map.keys.forEach((text, column) => {
      draw.save(); draw.translate(left + (column + 0.5) * cell, top - 4); draw.rotate(-Math.PI / 2);
      draw.fillText(text, 0, 0, top - 6); draw.restore();
    });
  }
  shown = {place, head, map, cells, cell, left, top, columns};
  [...at("heads").children].forEach((figure, number) => figure.classList.toggle("on", number === head));
  at("readout").textContent = `${map.place}, head ${head}: rows are queries, columns keys; the largest weight is ${map.heads[head].most.toFixed(3)}.`;
}
at("large").onmousemove = event => {
  const {map, cells, cell, left, top, columns, head} = shown;
  const column = Math.floor((event.offsetX - left) / cell), row = Math.floor((event.offsetY - top) / cell);
  if (row < 0 || column < 0 || row >= rowsOf(map) || column >= columns) return;
  const words = (texts, place) => texts.slice(place * block, (place + 1) * block).join(" ");
  const weight = cells[row * columns + column] / 255 * map.heads[head].most;
  at("readout").textContent = `${words(map.queries, row)}  ->  ${words(map.keys, column)}: ${weight.toFixed(3)}`;
};

data.maps.forEach((map, place) => { make("option", map.place, at("place")).value = place; });
at("place").onchange = event => showHead(Number(event.target.value), 0);

const figures = [["entropy", 2], ["distance", 1], ["induction", 3]];
function list(name, sign) {
  const worth = one => one[name] === null ? Infinity : sign * one[name];
  at("rows").replaceChildren();
  for (const one of [...data.scores].sort((a, b) => worth(a) - worth(b))) {
    const row = make("tr", "", at("rows"));
    make("td", `${one.place}, head ${one.head}`, row);
    for (const [figure, digits] of figures) make("td", fixed(one[figure], digits), row);
    row.onclick = () => showHead(data.maps.findIndex(map => map.place === one.place), one.head);
  }
}
make("th", "head", at("names"));
for (const [name] of figures) make("th", name, at("names")).onclick = () => list(name, name === "induction" ? -1 : 1);
list("entropy", 1);

at("probable").textContent = data.predicts === null ? "" : data.predicts === "next"
  ? "Probability of each token, given the tokens before it" : "Probability of each token, given the whole text";
for (const [token, probability] of data.probabilities) {
  const span = make("span", `${token} ${probability.toFixed(3)}`, at("tokens"));
  span.style.background = `rgba(11, 87, 208, ${0.35 * probability})`;
}
if (data.first) showHead(data.maps.findIndex(map => map.place === data.first.place), data.first.head);
}
