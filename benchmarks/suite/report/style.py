"""The style sheet of the page: readable on a phone, on paper, light and dark."""

STYLE = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 Georgia,'Iowan Old Style','Times New Roman',serif}
header,main{max-width:60rem;margin:0 auto;padding:0 1.1rem}
header{padding-top:2.6rem}
h1{font-size:clamp(1.6rem,4.6vw,2.5rem);line-height:1.16;margin:0 0 .8rem;letter-spacing:-.015em;text-wrap:balance}
h2{font-size:1.35rem;margin:3rem 0 .9rem;padding-top:.7rem;border-top:1px solid var(--line)}
.lead{font-size:1.1rem;color:var(--quiet);max-width:46rem}
nav ol{columns:2 16rem;padding-left:1.3rem;margin:1rem 0 0;font:14px/1.8 system-ui,sans-serif}
a{color:var(--system-stash)}
p,ul{max-width:48rem}
ul{padding-left:1.2rem}
li{margin:.25rem 0}
.quiet,figcaption,small{color:var(--quiet)}
.wide{overflow-x:auto;-webkit-overflow-scrolling:touch}
.wide:focus-visible{outline:2px solid var(--system-stash);outline-offset:3px}
table{border-collapse:collapse;width:100%;margin:1rem 0 1.4rem;font:13.5px/1.45 system-ui,sans-serif}
caption{text-align:left;font-weight:600;padding:.2rem 0 .5rem}
th,td{text-align:left;vertical-align:top;padding:.42rem .7rem .42rem 0;border-bottom:1px solid var(--line)}
thead th{color:var(--quiet);font-weight:600;white-space:nowrap}
tbody th{font-weight:500}
.numbers td{font-variant-numeric:tabular-nums;white-space:nowrap}
code{font:12px/1.4 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
figure{margin:1.6rem 0}
figure svg{display:block;width:100%;min-width:38rem;height:auto}
svg text{font-family:system-ui,'DejaVu Sans',sans-serif!important}
figcaption{font:13.5px/1.5 system-ui,sans-serif;max-width:48rem;margin-top:.4rem}
.missing{border:1px dashed var(--line);border-radius:6px;padding:.8rem 1rem;color:var(--quiet);
 font:14px/1.5 system-ui,sans-serif}
.badge{display:inline-block;padding:.02rem .5rem;border-radius:99px;font-weight:600;white-space:nowrap;font-size:12.5px;
 border:1.5px solid currentColor}
.met,.ok,.precise{color:var(--group-others)}
.missed,.wrong,.failed,.gap,.divergent{color:var(--system-global-checkpoint)}
.repeating,.convergent{color:var(--system-ray-retry)}
.detected{color:var(--system-stash)}
.not-measured,.skipped,.unknown{color:var(--quiet);border-style:dashed}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%}
summary{cursor:pointer;font:15px/1.6 system-ui,sans-serif}
main{padding-bottom:4rem}
@media print{.wide{overflow:visible}details{display:block}nav{display:none}}
"""
