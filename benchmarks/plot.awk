# Curves as an SVG drawing. Input lines: NAME X Y, the points of a curve in order; y runs over what is there, x from 0.
#
#     awk -f benchmarks/plot.awk POINTS > plot.svg
{
    if (!($1 in count)) { names[++n] = $1; count[$1] = 0 }
    k = ++count[$1]; x[$1, k] = $2; y[$1, k] = $3
    if ($2 > right) right = $2
    if (NR == 1 || $3 < low) low = $3
    if (NR == 1 || $3 > high) high = $3
}
function px(v) { return 60 + 480 * v / right }
function py(v) { return 340 - 310 * (v - low) / (high - low) }
END {
    if (!n) exit 1
    if (right <= 0) right = 1
    if (high <= low) high = low + 1
    split("#1b6ca8 #d1495b #edae49 #3a7d44 #6a4c93 #555555 #00798c #8d5524", color, " ")
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"400\" viewBox=\"0 0 720 400\" font-family=\"sans-serif\" font-size=\"12\">"
    print "<rect width=\"720\" height=\"400\" fill=\"white\"/>"
    print "<path d=\"M60 30V340H540\" fill=\"none\" stroke=\"#333\"/>"
    for (i = 0; i <= 4; i++) {
        v = low + (high - low) * i / 4; u = right * i / 4
        printf "<text x=\"54\" y=\"%.1f\" text-anchor=\"end\">%.2f</text><path d=\"M60 %.1fH540\" stroke=\"#ddd\"/>\n", py(v) + 4, v, py(v)
        printf "<text x=\"%.1f\" y=\"358\" text-anchor=\"middle\">%.0f</text>\n", px(u), u
    }
    print "<text x=\"300\" y=\"384\" text-anchor=\"middle\">updates</text><text x=\"60\" y=\"18\">validation NELBO, nats a token</text>"
    for (c = 1; c <= n; c++) {
        name = names[c]; line = ""
        for (k = 1; k <= count[name]; k++) line = line (k > 1 ? " " : "") sprintf("%.1f,%.1f", px(x[name, k]), py(y[name, k]))
        printf "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"%s\"/>\n", color[c], line
        printf "<path d=\"M556 %dh22\" stroke=\"%s\" stroke-width=\"2\"/><text x=\"584\" y=\"%d\">%s</text>\n", 40 + 22 * c, color[c], 44 + 22 * c, name
    }
    print "</svg>"
}
