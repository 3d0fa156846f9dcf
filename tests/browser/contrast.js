// Every visible text whose contrast with what is behind it is below `least`: [contrast, text].
// Behind it are the nearest backgrounds up to a solid one; contrast is WCAG 2's, (lighter + 0.05) / (darker + 0.05).
(least) => {
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const linear = (v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const alpha = (c) => c.length < 4 ? 1 : c[3];

  function behind(element) {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      layers.unshift(parts(getComputedStyle(e).backgroundColor));
      if (alpha(layers[0]) === 1) break;
    }
    return layers.reduce((under, c) => under.map((v, k) => v * (1 - alpha(c)) + c[k] * alpha(c)), [255, 255, 255]);
  }

  const poor = [];
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join(" ").trim();
    if (!text || ["SCRIPT", "STYLE"].includes(e.tagName) || !e.checkVisibility()) continue;
    const shades = [luminance(parts(getComputedStyle(e).color)), luminance(behind(e))].sort((a, b) => b - a);
    const contrast = (shades[0] + 0.05) / (shades[1] + 0.05);
    if (contrast < least) poor.push([contrast, text.slice(0, 60)]);
  }
  return poor;
}
