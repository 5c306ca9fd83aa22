"use strict";
const parts = (arm) => document.querySelectorAll(`g[data-arm="${arm}"], label[data-arm="${arm}"]`);
const boxes = [...document.querySelectorAll("input[data-arm]")];
const show = (box, on) => {
  for (const part of parts(box.dataset.arm)) part.classList.toggle("off", !on);
  for (const one of boxes) if (one.dataset.arm === box.dataset.arm) one.checked = on;
};
const point = (event) => {
  const arm = event.target.closest("[data-arm]")?.dataset.arm;
  document.body.classList.toggle("pointed", arm !== undefined);
  for (const part of document.querySelectorAll(".hot")) part.classList.remove("hot");
  if (arm !== undefined) for (const part of parts(arm)) part.classList.add("hot");
};
for (const box of boxes) box.addEventListener("change", () => show(box, box.checked));
for (const button of document.querySelectorAll(".legend button")) {
  button.hidden = false;
  button.addEventListener("click", () => boxes.forEach((box) => show(box, button.textContent === "all")));
}
for (const chart of document.querySelectorAll(".chart")) {
  chart.addEventListener("pointerover", point);
  chart.addEventListener("pointerleave", point);
}
