// The heat map of an alignment: a table, so that it can be read with and without eyes.

const VISIBLE = 0.005; // What rounds to 0 % is left blank: a table of zeros is tiring to hear.

/**
 * Weights between words out of those between pieces: [target words][source words].
 *
 * What a word looks at is the mean of what its pieces do; what is looked at is their sum.
 */
export function betweenWords(rows, sourceWords, targetWords) {
  return targetWords.map((target) =>
    sourceWords.map((source) => {
      let sum = 0;
      for (const row of target.positions) {
        for (const column of source.positions) sum += rows[row][column];
      }
      return sum / target.positions.length;
    }),
  );
}

export class HeatMap {
  /** @param {HTMLTableElement} table with thead and tbody */
  constructor(table) {
    this.head = table.tHead;
    this.body = table.tBodies[0];
    this.shown = [];
  }

  /** Empties the map and writes the source words above its columns. */
  begin(sourceWords) {
    this.shown = [];
    this.body.replaceChildren();
    const corner = document.createElement("td");
    this.head.replaceChildren(row([corner, ...sourceWords.map(({ word }) => heading("col", word))]));
  }

  /** Draws the rows that have come or changed since the last call. */
  draw(targetWords, weights) {
    targetWords.forEach(({ word }, i) => {
      if (this.shown[i] === word) return;
      const drawn = row([heading("row", word), ...weights[i].map(cell)]);
      if (i < this.shown.length) this.body.rows[i].replaceWith(drawn);
      else this.body.append(drawn);
      this.shown[i] = word;
    });
  }
}

function row(cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function heading(scope, word) {
  const made = document.createElement("th");
  made.scope = scope;
  made.textContent = word;
  return made;
}

function cell(weight) {
  const made = document.createElement("td");
  made.style.setProperty("--weight", weight.toFixed(6));
  if (weight >= VISIBLE) made.textContent = `${Math.round(100 * weight)} %`;
  return made;
}
